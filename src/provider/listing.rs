//! The walk through an account's batches, key by key and page by page. Knows no provider's list: what it needs of a page
//! is in [`Sheet`].

use super::{CallError, Cursor, Listed, Listing, RemoteId, transport::Transport};
use crate::clock::Millis;
use reqwest::Method;

/// Providers keep results for 29 or 30 days, and a batch may take one more: what was made so much longer before the newest
/// batch, by the provider's own clock, has none.
const KEPT_MS: Millis = 31 * 24 * 60 * 60 * 1_000;

/// A page as a provider's JSON tells it.
pub(super) struct Sheet {
    pub batches: Vec<Listed>,
    /// The last batch on it, whether or not it could be read.
    pub last: Option<RemoteId>,
    /// When the first and the last were made.
    pub newest: Option<Millis>,
    pub oldest: Option<Millis>,
    /// False only where the provider says so.
    pub more: bool,
}

/// One page of the walk. `path`: of the page behind a batch, or of the first; `read`: its JSON.
pub(super) async fn page(
    http: &Transport,
    from: &Cursor,
    path: impl Fn(Option<&str>) -> String,
    read: impl Fn(&[u8]) -> Option<Sheet>,
) -> Result<Listing, CallError> {
    let what = format!("list batches of {}", http.account);
    let Some(key) = http.keys().get(from.key) else {
        return Ok(Listing { batches: Vec::new(), next: None }); // there were more keys when the walk began
    };
    let more_keys = http.keys().len() > from.key + 1;
    let reply = match http.call_with(key, &what, Method::GET, &path(from.after.as_deref())).await {
        Ok(reply) => reply,
        // A key that is refused hides nothing from the others.
        Err(CallError::Paused { .. }) if more_keys || from.let_in => {
            let next = more_keys.then(|| next_key(from, from.let_in));
            return Ok(Listing { batches: Vec::new(), next });
        }
        Err(error) => return Err(error),
    };
    let sheet = read(&reply.body).ok_or_else(|| super::transport::again(&what, "the answer is no list"))?;
    let next = next(from, &sheet).or_else(|| more_keys.then(|| next_key(from, true)));
    Ok(Listing { batches: sheet.batches, next })
}

fn next_key(from: &Cursor, let_in: bool) -> Cursor {
    Cursor { key: from.key + 1, after: None, newest: None, let_in }
}

/// Where the same key's list goes on.
fn next(from: &Cursor, sheet: &Sheet) -> Option<Cursor> {
    let newest = from.newest.or(sheet.newest);
    let old = newest.zip(sheet.oldest).is_some_and(|(newest, oldest)| newest.saturating_sub(oldest) > KEPT_MS);
    // A server that does not know the cursor starts again: the same page, for ever.
    let last = sheet.last.as_ref().filter(|last| from.after.as_ref() != Some(&last.0))?;
    (sheet.more && !old).then(|| Cursor { key: from.key, after: Some(last.0.clone()), newest, let_in: from.let_in })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Millis = 24 * 60 * 60 * 1_000;

    fn sheet(last: &str, newest: Millis, oldest: Millis, more: bool) -> Sheet {
        let last = Some(RemoteId(last.to_owned()));
        Sheet { batches: Vec::new(), last, newest: Some(newest), oldest: Some(oldest), more }
    }

    #[test]
    fn a_walk_goes_on_behind_the_last_batch_until_results_are_too_old() {
        let first = next(&Cursor::default(), &sheet("b9", 100 * DAY, 90 * DAY, true)).expect("a second page");
        assert_eq!((first.after.as_deref(), first.newest), (Some("b9"), Some(100 * DAY)));
        assert!(next(&first, &sheet("b5", 90 * DAY, 70 * DAY, true)).is_some(), "by the newest of all pages");
        assert_eq!(next(&first, &sheet("b5", 90 * DAY, 68 * DAY, true)), None);
        assert_eq!(next(&first, &sheet("b5", 90 * DAY, 80 * DAY, false)), None);
    }

    #[test]
    fn a_server_that_knows_no_cursor_does_not_lead_in_circles() {
        let first = next(&Cursor::default(), &sheet("b9", DAY, DAY, true)).expect("it says there is more");
        assert_eq!(next(&first, &sheet("b9", DAY, DAY, true)), None);
        let empty = Sheet { batches: Vec::new(), last: None, newest: None, oldest: None, more: true };
        assert_eq!(next(&Cursor::default(), &empty), None);
    }
}
