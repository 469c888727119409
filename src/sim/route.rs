//! Which call a method and a path are. One table, so that faults and the ledger share its names.

use super::{openai::endpoint::Endpoint, problem::Provider};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    FilesCreate,
    FilesList,
    FilesGet,
    FilesDelete,
    FilesContent,
    BatchesCreate,
    BatchesList,
    BatchesGet,
    BatchesCancel,
    BatchesDelete,
    BatchesResults,
    /// OpenAI's online endpoints.
    Online(Endpoint),
    Messages,
    NoSuchPath,
    NoSuchMethod,
}

impl Route {
    /// As fault rules and the ledger call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FilesCreate => "files.create",
            Self::FilesList => "files.list",
            Self::FilesGet => "files.get",
            Self::FilesDelete => "files.delete",
            Self::FilesContent => "files.content",
            Self::BatchesCreate => "batches.create",
            Self::BatchesList => "batches.list",
            Self::BatchesGet => "batches.get",
            Self::BatchesCancel => "batches.cancel",
            Self::BatchesDelete => "batches.delete",
            Self::BatchesResults => "batches.results",
            Self::Online(endpoint) => endpoint.route_name(),
            Self::Messages => "messages",
            Self::NoSuchPath | Self::NoSuchMethod => "unknown",
        }
    }

    /// Do these calls count against an account's minute?
    pub(crate) fn is_rate_limited(self) -> bool {
        matches!(self, Self::BatchesCreate | Self::Online(_) | Self::Messages)
    }
}

/// A call with its place in the table; `id` is empty where the path has none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub(crate) provider: Provider,
    pub(crate) route: Route,
    pub(crate) id: &'a str,
}

/// None if the path is no provider's at all.
pub(crate) fn find<'a>(method: &str, path: &'a str) -> Option<Found<'a>> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let provider = match parts.next()? {
        "openai" => Provider::OpenAi,
        "anthropic" => Provider::Anthropic,
        _ => return None,
    };
    let rest: Vec<_> = parts.collect();
    let (id, routes) = match provider {
        Provider::OpenAi => openai(&rest),
        Provider::Anthropic => anthropic(&rest),
    };
    let route = match routes.iter().find(|(known, _)| *known == method) {
        Some((_, route)) => *route,
        None if routes.is_empty() => Route::NoSuchPath,
        None => Route::NoSuchMethod,
    };
    Some(Found { provider, route, id })
}

type Table<'a> = (&'a str, Vec<(&'static str, Route)>);

fn openai<'a>(path: &[&'a str]) -> Table<'a> {
    match path {
        ["v1", "files"] => ("", vec![("POST", Route::FilesCreate), ("GET", Route::FilesList)]),
        ["v1", "files", id] => (id, vec![("GET", Route::FilesGet), ("DELETE", Route::FilesDelete)]),
        ["v1", "files", id, "content"] => (id, vec![("GET", Route::FilesContent)]),
        ["v1", "batches"] => ("", vec![("POST", Route::BatchesCreate), ("GET", Route::BatchesList)]),
        ["v1", "batches", id] => (id, vec![("GET", Route::BatchesGet)]),
        ["v1", "batches", id, "cancel"] => (id, vec![("POST", Route::BatchesCancel)]),
        online => {
            let path = format!("/{}", online.join("/"));
            ("", Endpoint::of_path(&path).map(|endpoint| ("POST", Route::Online(endpoint))).into_iter().collect())
        }
    }
}

fn anthropic<'a>(path: &[&'a str]) -> Table<'a> {
    match path {
        ["v1", "messages"] => ("", vec![("POST", Route::Messages)]),
        ["v1", "messages", "batches"] => ("", vec![("POST", Route::BatchesCreate), ("GET", Route::BatchesList)]),
        ["v1", "messages", "batches", id] => (id, vec![("GET", Route::BatchesGet), ("DELETE", Route::BatchesDelete)]),
        ["v1", "messages", "batches", id, "cancel"] => (id, vec![("POST", Route::BatchesCancel)]),
        ["v1", "messages", "batches", id, "results"] => (id, vec![("GET", Route::BatchesResults)]),
        _ => ("", Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_by_method_and_path() {
        let check = |method, path, name: &str, id: &str| {
            let found = find(method, path).expect("a provider's path");
            assert_eq!((found.route.name(), found.id), (name, id), "{method} {path}");
        };
        check("GET", "/openai/v1/files/file-1/content", "files.content", "file-1");
        check("POST", "/openai/v1/chat/completions", "chat.completions", "");
        check("POST", "/openai/v1/batches/batch_1/cancel", "batches.cancel", "batch_1");
        check("DELETE", "/anthropic/v1/messages/batches/m", "batches.delete", "m");
        check("POST", "/anthropic/v1/messages", "messages", "");
        assert_eq!(find("PUT", "/openai/v1/files").map(|found| found.route), Some(Route::NoSuchMethod));
        assert_eq!(find("GET", "/openai/v1/models").map(|found| found.route), Some(Route::NoSuchPath));
        assert_eq!(find("GET", "/azure/v1/files"), None);
    }
}
