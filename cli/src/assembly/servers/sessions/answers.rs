//! Control requests of sessions. None waits for an origin: tools poll until a change is complete.

use std::sync::Arc;

use serde_json::{Value, json};
use tombolo_host_service::control::{Answers, Start};

use super::Sessions;

/// Control socket handler of a proxy's sessions.
pub struct SessionAnswers(pub Arc<Sessions>);

impl Answers for SessionAnswers {
    fn answer(&self, request: &str) -> Option<Value> {
        match request {
            "sessions" => serde_json::to_value(self.0.statuses()).ok(),
            _ => self.0.service.answer(request),
        }
    }

    fn set(&self, options: &str) -> Result<Value, String> {
        self.0.service.set(options)
    }

    fn answer_of_session(&self, request: &str, session: &str) -> Option<Result<Value, String>> {
        match request {
            "session-detach" => {
                let begun = self.0.detach(session).map(|()| json!({ "ending": session }));
                Some(begun.map_err(|failure| failure.to_string()))
            }
            _ => self.0.service.answer_of_session(request, session),
        }
    }

    fn create_session(&self, session: &str, start: Start) -> Result<Value, String> {
        let begun = self.0.create(session, start).map(|()| json!({ "starting": session }));
        begun.map_err(|failure| failure.to_string())
    }
}
