//! OpenAI: files, batches and the online endpoints, under `/openai/v1`.

pub(crate) mod batches;
pub(crate) mod endpoint;
pub(crate) mod file;
pub(crate) mod files;
pub(crate) mod life;
pub(crate) mod lines;
mod online;
mod page;
mod results;
pub(crate) mod wire;

use super::{calls::Call, delivery::Outgoing, problem::Problem, route::Route};

pub(crate) async fn handle(call: &mut Call) -> Result<Outgoing, Problem> {
    match call.route {
        Route::FilesCreate => files::create(call).await,
        Route::FilesList => files::list(call).await,
        Route::FilesGet => files::get(call).await,
        Route::FilesDelete => files::delete(call),
        Route::FilesContent => files::content(call).await,
        Route::BatchesCreate => batches::create(call).await,
        Route::BatchesList => batches::list(call),
        Route::BatchesGet => batches::get(call),
        Route::BatchesCancel => batches::cancel(call),
        Route::Online(endpoint) => online::answer(call, endpoint).await,
        Route::NoSuchMethod => Err(wire::no_such_url(call, 405)),
        Route::NoSuchPath | Route::BatchesDelete | Route::BatchesResults | Route::Messages => {
            Err(wire::no_such_url(call, 404))
        }
    }
}
