# `docker buildx bake` builds the image for CPUs on both architectures, `docker buildx bake cuda` the one for
# NVIDIA GPUs, and `docker buildx bake sbom` writes text-embeddings-router.cdx.json. Add --push, or `--set
# '*.platform=linux/amd64' --load`.

variable "REGISTRY" { default = "" }
variable "VERSION" { default = "0.2.0" }
variable "REVISION" { default = "unknown" }
variable "CUDA_COMPUTE_CAP" { default = "80" }

group "default" { targets = ["cpu"] }

target "common" {
  context = "."
  args = {
    VERSION  = VERSION
    REVISION = REVISION
  }
  attest = ["type=sbom", "type=provenance,mode=max"]
}

target "cpu" {
  inherits   = ["common"]
  dockerfile = "Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
  tags       = ["${REGISTRY}text-embeddings-router:${VERSION}"]
}

target "cuda" {
  inherits   = ["common"]
  dockerfile = "Dockerfile-cuda"
  platforms  = ["linux/amd64"]
  args       = { CUDA_COMPUTE_CAP = CUDA_COMPUTE_CAP }
  tags       = ["${REGISTRY}text-embeddings-router:${VERSION}-cuda"]
}

target "sbom" {
  dockerfile = "Dockerfile"
  target     = "sbom"
  output     = ["."]
}
