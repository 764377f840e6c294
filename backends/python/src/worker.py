"""Computes batches for text-embeddings-router with PyTorch and sentence-transformers.

The router starts this program. File descriptor 0 is a socket to the router; the router logs descriptors 1 and
2. Frames travel over the socket in both directions: the length of the header and the length of the payload
(two little-endian u32), then the header (JSON, an object with `kind`), then the payload (arrays of
little-endian 4-byte values). `frame.rs` lists the messages.

What must hold: the worker ends when the router ends; after a batch that fails, the worker answers `failed`
and computes the next one; files of the model only run as code if the router allows it; nothing is downloaded.
"""

import json
import os
import queue
import signal
import socket
import struct
import sys
import threading

VERSION = 1
LENGTHS = struct.Struct("<II")
MOST_HEADER = 1 << 16
MOST_PAYLOAD = 1 << 30
MOST_REASON = 2000
PACKAGES = "torch sentence-transformers"
# The prctl option for the signal that Linux sends a process when the thread that started it ends.
PR_SET_PDEATHSIG = 1


class Refusal(Exception):
    """The model cannot be served. The text tells the user why."""


def main():
    link = socket.socket(fileno=os.dup(0))
    # Programs that libraries start must not keep the socket open.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    end_with_parent()
    requests = queue.Queue()
    threading.Thread(target=listen, args=(link, requests), daemon=True).start()
    python = ".".join(str(number) for number in sys.version_info[:3])
    send(link, {"kind": "hello", "version": VERSION, "python": python})
    model = None
    while True:
        header, payload = requests.get()
        if header["kind"] == "load":
            try:
                model = Model(header)
                answer = {"kind": "loaded", **model.facts}
            except Refusal as refusal:
                answer = {"kind": "refused", "reason": str(refusal)}
            except BaseException as error:
                answer = {"kind": "refused", "reason": told(error)}
            send(link, answer)
        elif header["kind"] == "batch":
            compute(link, model, header, payload)
        else:
            give_up(f"the router sent {header['kind']!r}, which this worker does not know")


def end_with_parent():
    """Asks Linux to kill this process with the router. A worker that computes while it holds Python's lock would
    not notice that its socket ended."""
    if sys.platform == "linux":
        try:
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        except Exception as error:
            print(f"the worker cannot ask to be ended with the router: {error}", file=sys.stderr)


def listen(link, requests):
    """Puts frames into the queue until the router is gone, then ends the process, even while it computes."""
    try:
        while True:
            prefix = receive(link, LENGTHS.size)
            header, payload = LENGTHS.unpack(prefix)
            if header > MOST_HEADER or payload > MOST_PAYLOAD:
                give_up(f"the router announced {header} and {payload} bytes, more than a frame may have")
            header = json.loads(receive(link, header))
            requests.put((header, receive(link, payload)))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException as error:
        give_up(f"the router sent a frame that is none: {error!r}")


def receive(link, count):
    buffer = bytearray(count)
    view = memoryview(buffer)
    while view:
        received = link.recv_into(view)
        if received == 0:
            raise EOFError
        view = view[received:]
    return buffer


def send(link, header, payload=b""):
    header = json.dumps(header).encode()
    try:
        link.sendall(LENGTHS.pack(len(header), len(payload)) + header)
        link.sendall(payload)
    except OSError:
        os._exit(0)


def give_up(reason):
    print(reason, file=sys.stderr, flush=True)
    os._exit(1)


def told(error):
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if len(text) <= MOST_REASON else text[:MOST_REASON] + " …"
    return text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"


def compute(link, model, header, payload):
    import torch

    number = header["batch"]
    try:
        answer, values = model.compute(header, payload)
    except BaseException as error:
        out_of_memory = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
        send(link, {"kind": "failed", "batch": number, "reason": told(error), "out_of_memory": out_of_memory})
        if out_of_memory and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        elif model.device == "cuda":
            # After most faults of a kernel, every later call of the same process fails.
            give_up("the worker ends, because a batch failed on the GPU")
        return
    send(link, {"kind": "values", "batch": number, **answer}, values)


class Model:
    """A loaded model: `facts` for the router, `compute` for batches."""

    def __init__(self, request):
        if sys.version_info < (3, 9):
            raise Refusal(f"Python is {sys.version.split()[0]}; at least 3.9 is needed")
        self.folder = request["model"]
        self.trusts = request["trust_remote_code"]
        if not self.trusts:
            # torch then refuses pickles that contain anything but tensors.
            os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
            refuse_code(self.folder)
        torch, library = imported()
        self.torch = torch
        torch.set_num_threads(request["threads"])
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.task = request["task"]
        try:
            self.model = self.loaded(library, request)
        except Exception as error:
            raise self.refusal(error) from error
        self.model.eval()
        self.tokenizer = self.tokenizer_of(library)
        self.has_types = "token_type_ids" in self.tokenizer.model_input_names
        self.pad = self.tokenizer.pad_token_id or 0
        self.pads_left = self.tokenizer.padding_side == "left"
        self.check_tokenizer(request["probes"])
        if self.task == "embedding":
            self.check_modules()
        self.facts = {"device": self.device, "dtype": request["dtype"], "padding": self.pad, **self.widths()}
        self.facts["versions"] = f"torch {torch.__version__}, sentence-transformers {library.__version__}"

    def loaded(self, library, request):
        import transformers

        transformers.utils.logging.disable_progress_bar()
        new = tuple(int(part) for part in transformers.__version__.split(".")[:2]) >= (4, 56)
        dtype = getattr(self.torch, request["dtype"])
        options = {
            "device": self.device,
            "trust_remote_code": self.trusts,
            "local_files_only": True,
            "model_kwargs": {"dtype" if new else "torch_dtype": dtype},
        }
        if self.task == "scores":
            return library.CrossEncoder(self.folder, **options)
        model = library.SentenceTransformer(self.folder, **options)
        if request["pooling"] is not None:
            # The files do not name a pooling. The router knows it; sentence-transformers would guess.
            size = getattr(model[0], "get_embedding_dimension", None) or model[0].get_word_embedding_dimension
            model[1] = type(model[1])(size(), pooling_mode=request["pooling"])
        return model

    def refusal(self, error):
        if not self.trusts and "trust_remote_code" in str(error):
            return Refusal(
                "the model needs the Python code of its repository, which is not run unless "
                "`--trust-remote-code` asks for it: read the code first"
            )
        return Refusal(told(error))

    def tokenizer_of(self, library):
        import transformers

        tokenizer = getattr(self.model, "tokenizer", None)
        if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
            first = next(iter(self.model.children()), self.model)
            raise Refusal(f"the model begins with a {type(first).__name__}, which takes no token ids of a Transformer")
        return tokenizer

    def check_tokenizer(self, probes):
        """Refuses the model if its own tokenizer gives other ids than the router's."""
        # A model without a table of types ignores them, whatever its tokenizer says.
        config = getattr(getattr(self.model[0], "auto_model", None) if self.task == "embedding" else self.model.model, "config", None)
        compares_types = self.has_types and getattr(config, "type_vocab_size", None) not in (0, 1)
        for probe in probes:
            expected = self.tokenizer(*probe["texts"], return_token_type_ids=self.has_types)
            names = ["input_ids", "token_type_ids"] if compares_types else ["input_ids"]
            for name in names:
                if list(expected[name]) != list(probe[name]):
                    raise Refusal(
                        f"tokenizer.json gives {probe['texts']!r} the {name} {probe[name]}, and the tokenizer that "
                        f"transformers loads ({type(self.tokenizer).__name__}) gives {list(expected[name])}"
                    )

    def check_modules(self):
        names = [type(module).__name__ for module in self.model.children()]
        for module in self.model.modules():
            if type(module).__name__ in ("Router", "Asym"):
                raise Refusal("the model has a Router, which this backend does not feed")
            if getattr(module, "include_prompt", True) is False:
                raise Refusal("its pooling leaves the prompt out (`include_prompt` is false), which is not supported")
        if any(name.startswith("Splade") for name in names):
            raise Refusal("SPLADE models are not served by the Python backend")

    def widths(self):
        """Runs the model once: broken weights show here, not in the first request."""
        ids = self.torch.zeros((1, 2), dtype=self.torch.int64)
        with self.torch.inference_mode():
            whole, tokens, _ = self.outputs(self.features(ids, self.torch.ones_like(ids), ids))
        if not bool(self.torch.isfinite(whole).all()):
            raise Refusal("the model's first answer is not a number: the weights are broken, or too large for the dtype")
        return {"width": whole.shape[1], "token_width": 0 if tokens is None else tokens.shape[2]}

    def features(self, ids, mask, types):
        """The model's input, made of matrices that are padded on the right."""
        if self.pads_left:
            # Rotates each row, so that its padding comes first.
            width = ids.shape[1]
            places = (self.torch.arange(width) + mask.sum(1, keepdim=True)) % width
            ids, mask, types = (matrix.gather(1, places) for matrix in (ids, mask, types))
        found = {"input_ids": ids, "attention_mask": mask}
        if self.has_types:
            found["token_type_ids"] = types
        return {name: matrix.to(self.device) for name, matrix in found.items()}

    def outputs(self, features):
        """Scores or vectors `[texts, values]`. For embedding models also the vectors of tokens
        `[texts, width, values]`."""
        mask = features["attention_mask"]
        shape = tuple(mask.shape)
        if self.task == "scores":
            if isinstance(self.model, self.torch.nn.Sequential):
                whole, tokens = self.model(features)["scores"], None
            else:
                # Before 5.5, CrossEncoder wraps the model of transformers and not a list of modules.
                whole, tokens = self.model.model(**features, return_dict=True).logits, None
            whole = whole.reshape(-1, 1) if whole.ndim == 1 else whole
        else:
            found = self.model(features)
            whole, tokens = found["sentence_embedding"], found.get("token_embeddings")
            tokens = tokens if tokens is not None and tuple(tokens.shape[:2]) == shape else None
        if whole.ndim != 2 or whole.shape[0] != shape[0]:
            raise ValueError(f"the model gives values of shape {list(whole.shape)} for {shape[0]} texts")
        # The model may have changed the dictionary, but not the mask.
        return whole, tokens, mask.bool()

    def compute(self, header, payload):
        torch, count = self.torch, header["texts"]
        matrices = torch.frombuffer(payload, dtype=torch.int32).to(torch.int64).view(3, count, header["width"])
        with torch.inference_mode():
            whole, tokens, mask = self.outputs(self.features(*matrices))
            answer = {"whole": [count, whole.shape[1]], "tokens": [0, 0]}
            values = as_bytes(whole)
            if header["tokens"]:
                if tokens is None:
                    raise ValueError("the model gives no vectors of tokens")
                # Row after row, without the padding.
                tokens = tokens[mask.to(tokens.device)]
                answer["tokens"] = list(tokens.shape)
                values += as_bytes(tokens)
        return answer, values


def as_bytes(tensor):
    return tensor.detach().to("cpu").float().contiguous().numpy().astype("<f4", copy=False).tobytes()


def imported():
    try:
        import sentence_transformers
        import torch
    except ImportError as error:
        missing = getattr(error, "name", None)
        reason = f"the package `{missing}` is missing" if isinstance(error, ModuleNotFoundError) else told(error)
        raise Refusal(
            f"{reason}: `{sys.executable} -m pip install {PACKAGES}` installs what the Python backend needs, and "
            "`--python` names another interpreter"
        ) from error
    return torch, sentence_transformers


def refuse_code(folder):
    """Refuses a folder with code: sentence-transformers would run it without asking."""
    for module in entries(folder, "modules.json", []):
        refuse_class(module.get("type"), "modules.json", "sentence_transformers.")
        path = str(module.get("path") or "")
        if os.path.isabs(path) or ".." in path.split("/"):
            raise Refusal(f"modules.json names the folder {path!r}, which is not in the model's folder")
        config = entries(os.path.join(folder, path), "config.json", {})
        refuse_class(config.get("activation_function"), f"{path}/config.json", "torch.nn.")
        routes = entries(os.path.join(folder, path), "router_config.json", {})
        for name in (routes.get("types") or {}).values():
            refuse_class(name, f"{path}/router_config.json", "sentence_transformers.")
    config = entries(folder, "config.json", {})
    settings = entries(folder, "config_sentence_transformers.json", {})
    nested = config.get("sentence_transformers") or {}
    for name in (nested.get("activation_fn"), config.get("sbert_ce_default_activation_function"), settings.get("activation_fn")):
        refuse_class(name, "the configuration", "torch.nn.")


def entries(folder, file, default):
    try:
        with open(os.path.join(folder, file), encoding="utf-8") as opened:
            found = json.load(opened)
    except FileNotFoundError:
        return default
    except ValueError as error:
        raise Refusal(f"{os.path.join(folder, file)}: {error}") from error
    return found if isinstance(found, type(default)) else default


def refuse_class(name, place, known):
    if name is not None and not str(name).startswith(known):
        raise Refusal(
            f"{place} names the class {str(name)[:200]!r}, which is not one of {known}*: such code is not run unless "
            "`--trust-remote-code` asks for it: read it first"
        )


main()
