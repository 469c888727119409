//! Anthropic: message batches and online messages, under `/anthropic`.

pub(crate) mod batches;
pub(crate) mod check;
mod intake;
pub(crate) mod life;
mod online;
mod results;
pub(crate) mod wire;

use super::{
    calls::Call,
    delivery::Outgoing,
    problem::{Problem, Provider, Trouble},
    route::Route,
};

pub(crate) async fn handle(call: &mut Call) -> Result<Outgoing, Problem> {
    match call.route {
        Route::BatchesCreate => batches::create(call).await,
        Route::BatchesList => batches::list(call),
        Route::BatchesGet => batches::get(call),
        Route::BatchesCancel => batches::cancel(call),
        Route::BatchesDelete => batches::delete(call),
        Route::BatchesResults => batches::results(call).await,
        Route::Messages => online::answer(call).await,
        Route::NoSuchMethod => Err(Problem { status: 405, ..Problem::of(Provider::Anthropic, Trouble::NotFound) }),
        Route::NoSuchPath
        | Route::FilesCreate
        | Route::FilesList
        | Route::FilesGet
        | Route::FilesDelete
        | Route::FilesContent
        | Route::Online(_) => Err(Problem::of(Provider::Anthropic, Trouble::NotFound)),
    }
}
