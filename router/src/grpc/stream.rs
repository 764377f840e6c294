//! Streams of requests to streams of answers, for every method that has them.
//!
//! Input: the client's messages, and a function that answers one of them. Output: the answers, in the order
//! of the messages. What must hold: at most `room` messages wait for their answers, so that the server stops
//! reading from a client that does not read; the first error ends the stream, after the answers before it;
//! when the call is dropped, its work is cancelled. A stream that waits for its client holds no permit.

use std::{future::Future, pin::Pin};

use futures_util::{Stream, StreamExt};
use text_embeddings_core::service::{Answer, Service};
use tonic::{Request, Response, Status, Streaming};

use super::Grpc;

/// The answers to a stream.
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
        answer: impl Fn(Service, Q) -> F + Send + 'static,
    ) -> Response<AnswerStream<A>>
    where
        Q: Send + 'static,
        A: Send + 'static,
        F: Future<Output = Result<A, Status>> + Send + 'static,
    {
        let service = self.0.service.patient();
        // As many inputs at a time as one request over HTTP may have.
        let room = service.config().max_client_batch_size;
        Response::new(in_order(requests.into_inner(), room, move |request| answer(service.clone(), request)))
    }
}

/// At most `room` requests at a time become answers.
fn in_order<Q, A, F>(
    requests: impl Stream<Item = Result<Q, Status>> + Send + 'static,
    room: usize,
    work: impl Fn(Q) -> F + Send + 'static,
) -> AnswerStream<A>
where
    Q: Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let answers = requests.map(move |request| {
        let answer = request.map(&work);
        async { answer?.await }
    });
    Box::pin(answers.buffered(room))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use futures_util::stream;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };
    use tonic::Code;

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
                        Ok((index, ended.fetch_add(1, Ordering::Relaxed)))
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
            let mut answers = in_order(requests, room, |index: usize| async move { Ok(index) });
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
        let mut answers = in_order(requests, 4, |index: usize| async move { Ok(index) });
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
                    return Ok(index);
                }
                std::future::pending().await
            }
        });
        assert_eq!(answers.next().await.unwrap().unwrap(), 0);
        assert!(futures_util::poll!(answers.next()).is_pending());
        assert_eq!(alive.load(Ordering::Relaxed), 4);
        drop(answers);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }
}
