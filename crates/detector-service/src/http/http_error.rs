//! Errors as responses: a status and a JSON body with a code for programs and a text for people.

use crate::host_check::Denied;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use varve_detector_stream::{ErrorCode, StreamRefusal};

#[derive(Debug)]
pub struct HttpError {
    status: StatusCode,
    code: &'static str,
    text: String,
}

impl From<Denied> for HttpError {
    fn from(denied: Denied) -> HttpError {
        HttpError { status: denied.status(), code: denied.code(), text: denied.to_string() }
    }
}

impl From<StreamRefusal> for HttpError {
    fn from(refusal: StreamRefusal) -> HttpError {
        let status = match refusal.code {
            ErrorCode::Token => StatusCode::UNAUTHORIZED,
            ErrorCode::Unknown => StatusCode::NOT_FOUND,
            ErrorCode::Busy | ErrorCode::Ended => StatusCode::CONFLICT,
            ErrorCode::Limit | ErrorCode::Stopping | ErrorCode::Full => StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            ErrorCode::Protocol | ErrorCode::Version | ErrorCode::Description | ErrorCode::Vanished => {
                StatusCode::BAD_REQUEST
            }
        };
        HttpError { status, code: refusal.code.name(), text: refusal.text }
    }
}

impl HttpError {
    /// With the status that `code` usually has.
    pub fn of(code: ErrorCode, text: impl Into<String>) -> HttpError {
        StreamRefusal::new(code, text).into()
    }

    pub fn with_status(self, status: StatusCode) -> HttpError {
        HttpError { status, ..self }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct ErrorBody<'r> {
            error: &'r str,
            text: &'r str,
        }
        (self.status, Json(ErrorBody { error: self.code, text: &self.text })).into_response()
    }
}
