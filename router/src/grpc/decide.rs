//! `Decide`: one text, many questions, a probability for each answer.
//!
//! Input: a message with all questions. Output: one answer. What must hold: a question has the same
//! probabilities as over HTTP.

use text_embeddings_core::service::{Decision, DecisionRequest, Question, QuestionKind, QuestionOption};
use text_embeddings_proto::v1::{self, decide_server::Decide, question::Answers};
use tonic::{Request, Response, Status, async_trait};

use super::{
    Grpc,
    error::invalid,
    wire::{answered, number},
};

/// Which values of an answer a question has.
#[derive(Clone, Copy)]
enum ValuesShown {
    Choice,
    Scale,
    Noul,
}

#[async_trait]
impl Decide for Grpc {
    async fn decide(
        &self,
        request: Request<v1::DecideRequest>,
    ) -> Result<Response<v1::DecideResponse>, Status> {
        let v1::DecideRequest { state, questions, both_orders } = request.into_inner();
        let mut request = DecisionRequest {
            state: state.into(),
            questions: Vec::with_capacity(questions.len()),
            both_orders,
        };
        let mut forms = Vec::with_capacity(questions.len());
        for (index, question) in questions.into_iter().enumerate() {
            let (question, shown) = read_question(format!("questions[{index}]"), question)?;
            request.questions.push(question);
            forms.push(shown);
        }
        let answer = self.0.served().service.decide(request).await;
        let answer = answered("tei.v1.Decide/Decide", answer, |decisions, metadata| v1::DecideResponse {
            decisions: decisions
                .into_iter()
                .zip(forms)
                .map(|(decision, shown)| decision_message(decision, shown))
                .collect(),
            metadata,
        })?;
        Ok(self.respond(answer))
    }
}

fn read_question(place: String, question: v1::Question) -> Result<(Question, ValuesShown), Status> {
    let v1::Question { instructions, answers } = question;
    let (kind, shown) = match answers {
        Some(Answers::Choice(choice)) => {
            let options = choice.options.into_iter();
            let options = options.map(|v1::ChoiceOption { name, description }| QuestionOption {
                name,
                description: description.map(Into::into),
            });
            (QuestionKind::Choice(options.collect()), ValuesShown::Choice)
        }
        Some(Answers::Scale(scale)) => {
            let levels = scale.levels.into_iter().map(Into::into);
            (QuestionKind::Score(levels.collect()), ValuesShown::Scale)
        }
        Some(Answers::Noul(v1::Noul { yes, no })) => {
            let (yes, no) = (yes.map(Into::into), no.map(Into::into));
            (QuestionKind::Noul { yes, no }, ValuesShown::Noul)
        }
        None => return Err(invalid(format!("`{place}` has no `choice`, `scale` or `noul`"))),
    };
    Ok((Question { place, instructions: instructions.into(), kind }, shown))
}

fn decision_message(decision: Decision, shown: ValuesShown) -> v1::Decision {
    let (confidence, score) = match shown {
        ValuesShown::Choice => (Some(decision.choice_confidence()), None),
        ValuesShown::Scale => (Some(decision.score_confidence()), Some(decision.expected_level())),
        ValuesShown::Noul => (None, None),
    };
    v1::Decision {
        best: number(decision.best_index()),
        confidence,
        score,
        probabilities: decision.probabilities,
    }
}
