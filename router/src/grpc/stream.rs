//! Streams of requests to streams of answers, for every method that has them.
//!
//! Input: the client's messages, and a function that answers one of them. Output: the answers, in the order
//! of the messages. What must hold: a message is worked on only under a permit, and no further one is decoded
//! before it has its own; work goes on and gives its permit back whether or not the client takes answers; at
//! most `room` messages of a call are worked on or wait for the client, and their bytes count; the first
//! error ends the stream, after the answers before it; when the call is dropped, its work is cancelled. A
//! stream that waits for its client holds no permit.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::{Stream, StreamExt, stream};
use prost::Message;
use text_embeddings_core::service::{Answer, Service};
use text_embeddings_door::{Account, HeldAnswer};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::{Grpc, error::status};

pub(super) type AnswerStream<A> = Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>;

/// An answer of a stream. Its cost is only in the message; a call's metadata are for the answer to a single
/// message.
pub(super) fn without_headers<M>(answer: Answer<M>) -> M {
    answer.value
}

impl Grpc {
    /// Answers each message of a stream with `answer`.
    pub(super) fn stream<Q, A, F>(
        &self,
        requests: Request<Streaming<Q>>,
        answer: impl Fn(Service, Q) -> F + Send + Sync + 'static,
    ) -> Response<AnswerStream<A>>
    where
        Q: Send + 'static,
        A: Message + 'static,
        F: Future<Output = Result<A, Status>> + Send + 'static,
    {
        let service = self.0.served().service.clone();
        // As many inputs at a time as one request over HTTP may have.
        let room = service.config().max_client_batch_size;
        let account = requests.extensions().get::<Account>().cloned();
        if let Some(account) = &account {
            account.allow_pauses();
        }
        let admitted = admit_messages(requests.into_inner(), service, account.clone());
        Response::new(in_order(admitted, room, move |(service, request)| {
            // The client may take the answer long after it is there.
            let (account, answer) = (account.clone(), answer(service, request));
            async move {
                let answer = answer.await?;
                let held = account.map(|account| account.hold_answer(answer.encoded_len()));
                Ok(Waiting { answer, _held: held })
            }
        }))
    }
}

/// An answer that waits until the client takes it.
struct Waiting<A> {
    answer: A,
    _held: Option<HeldAnswer>,
}

/// Each message with the permit for it, which the service holds. The next message is decoded when this one
/// has its permit.
fn admit_messages<Q: Send + 'static>(
    requests: impl Stream<Item = Result<Q, Status>> + Send + 'static,
    service: Service,
    account: Option<Account>,
) -> impl Stream<Item = Result<(Service, Q), Status>> + Send + 'static {
    requests.then(move |request| {
        let (service, account) = (service.clone(), account.clone());
        async move {
            let request = request?;
            let Some(account) = account else {
                return Ok((service.admit_next().await.map_err(status)?, request));
            };
            tokio::select! {
                admitted = service.admit_next() => {
                    account.release_message();
                    Ok((admitted.map_err(status)?, request))
                }
                cut = account.until_evicted() => Err(Status::resource_exhausted(cut.to_string())),
            }
        }
    })
}

/// A task that ends when its result is dropped.
struct SpawnedWork<T>(JoinHandle<Result<T, Status>>);

impl<T> Future for SpawnedWork<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(ended.unwrap_or_else(|_| Err(Status::internal("the answer could not be computed"))))
    }
}

impl<T> Drop for SpawnedWork<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// At most `room` requests at a time become answers, or are answers that wait for the client. Requests are
/// read by a task of their own: the stream of answers is not polled while the client takes nothing, and a
/// waiter that is not polled could keep the permit that it is given.
fn in_order<Q, A, F>(
    requests: impl Stream<Item = Result<Q, Status>> + Send + 'static,
    room: usize,
    work: impl Fn(Q) -> F + Send + 'static,
) -> AnswerStream<A>
where
    Q: Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<Waiting<A>, Status>> + Send + 'static,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    let slots = Arc::new(Semaphore::new(room));
    let reading = async move {
        let mut requests = pin!(requests);
        while let Ok(slot) = Arc::clone(&slots).acquire_owned().await
            && let Some(request) = requests.next().await
        {
            let is_last = request.is_err();
            let work = request.map(|request| SpawnedWork(tokio::spawn(work(request).in_current_span())));
            if sender.send((work, slot)).is_err() || is_last {
                break;
            }
        }
        Ok(())
    };
    let reader = SpawnedWork(tokio::spawn(reading.in_current_span()));
    Box::pin(stream::unfold((receiver, reader), async |(mut receiver, reader)| {
        let (work, slot) = receiver.recv().await?;
        let answer = match work {
            Ok(work) => work.await,
            Err(status) => Err(status),
        };
        drop(slot);
        Some((answer.map(|waiting| waiting.answer), (receiver, reader)))
    }))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };
    use tonic::Code;

    #[expect(clippy::unnecessary_wraps, reason = "an answer may be an error")]
    fn held<A>(answer: A) -> Result<Waiting<A>, Status> {
        Ok(Waiting { answer, _held: None })
    }

    /// Counts the living values.
    #[derive(Clone)]
    struct Alive(Arc<AtomicUsize>);

    impl Alive {
        fn born(count: &Arc<AtomicUsize>) -> Self {
            count.fetch_add(1, Ordering::Relaxed);
            Self(Arc::clone(count))
        }
    }

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    // The paused clock jumps to the next timer: delays take no time, and decide the order in which work ends.
    #[tokio::test(start_paused = true)]
    async fn answers_keep_the_order_of_the_requests_whichever_ends_first() {
        let mut rng = StdRng::seed_from_u64(rand::rng().random());
        for (count, room) in [(0, 1), (1, 1), (50, 1), (50, 4), (50, 49), (50, 50), (50, 51)] {
            let delays: Vec<u64> = (0..count).map(|_| rng.random_range(0..100)).collect();
            let ended = Arc::new(AtomicUsize::new(0));
            let requests = stream::iter(delays.clone().into_iter().enumerate().map(Ok));
            let answers = in_order(requests, room, {
                let ended = Arc::clone(&ended);
                move |(index, delay)| {
                    let ended = Arc::clone(&ended);
                    async move {
                        tokio::time::sleep(Duration::from_millis(delay)).await;
                        held((index, ended.fetch_add(1, Ordering::Relaxed)))
                    }
                }
            });
            let answers: Vec<(usize, usize)> = answers.map(Result::unwrap).collect().await;
            let order: Vec<usize> = answers.iter().map(|(index, _)| *index).collect();
            assert_eq!(order, (0..count as usize).collect::<Vec<_>>(), "{delays:?}");
            let overtook = answers.iter().any(|(index, ended)| index != ended);
            assert_eq!(overtook, count > 1 && room > 1, "{delays:?}");
        }
    }

    #[tokio::test]
    async fn no_more_is_read_than_there_is_room_for() {
        for room in [1, 2, 7] {
            let pulled = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&pulled);
            let requests = stream::iter(0..100).map(move |index| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(index)
            });
            let mut answers = in_order(requests, room, |index: usize| async move { held(index) });
            for index in 0..10 {
                assert_eq!(answers.next().await.unwrap().unwrap(), index);
                let pulled = pulled.load(Ordering::Relaxed);
                assert!(pulled <= index + 1 + room, "{pulled} with room for {room} after {index}");
            }
        }
    }

    #[tokio::test]
    async fn an_error_comes_after_the_answers_before_it() {
        let requests = stream::iter([Ok(0), Ok(1), Err(Status::cancelled("gone")), Ok(3)]);
        let mut answers = in_order(requests, 4, |index: usize| async move { held(index) });
        assert_eq!(answers.next().await.unwrap().unwrap(), 0);
        assert_eq!(answers.next().await.unwrap().unwrap(), 1);
        assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::Cancelled);
    }

    #[tokio::test]
    async fn dropping_the_answers_drops_the_work() {
        let alive = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&alive);
        let requests = stream::iter(0..10).map(Ok);
        let mut answers = in_order(requests, 4, move |index: usize| {
            let life = Alive::born(&count);
            async move {
                let _life = life;
                if index == 0 {
                    return held(index);
                }
                std::future::pending().await
            }
        });
        assert_eq!(answers.next().await.unwrap().unwrap(), 0);
        let wait = Duration::from_millis(50);
        assert!(tokio::time::timeout(wait, answers.next()).await.is_err());
        assert_eq!(alive.load(Ordering::Relaxed), 4);
        drop(answers);
        while alive.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    }
}
