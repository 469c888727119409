//! Lists in pages: `limit`, `after`, and the five members of a list's answer.

use serde::Deserialize;
use serde_json::{Value, json};

use super::wire::whole_number;
use crate::sim::{delivery::Outgoing, problem::Problem};

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Paging {
    limit: Option<String>,
    after: Option<String>,
    pub(crate) order: Option<String>,
    pub(crate) purpose: Option<String>,
}

/// How long a page is and may be.
#[derive(Clone, Copy)]
pub(crate) struct Length {
    pub(crate) default: i64,
    pub(crate) most: i64,
}

impl Paging {
    /// One page of `items`, which are in the order of the list, and whether there are more.
    pub(crate) fn page<T>(
        &self,
        items: Vec<T>,
        id: impl Fn(&T) -> &str,
        length: Length,
    ) -> Result<(Vec<T>, bool), Problem> {
        let given = self.limit.as_ref().map_or_else(|| json!(length.default), |limit| json!(limit));
        let limit = usize::try_from(whole_number("limit", &given, 1..=length.most)?).unwrap_or(1);
        let start = match self.after.as_deref().filter(|after| !after.is_empty()) {
            None => 0,
            Some(after) => {
                let place = items.iter().position(|item| id(item) == after);
                place.map(|place| place + 1).ok_or_else(|| {
                    let message = format!("Invalid 'after': no object with id '{after}'.");
                    Problem::invalid(message).param("after").code("invalid_value")
                })?
            }
        };
        let more = items.len() > start + limit;
        Ok((items.into_iter().skip(start).take(limit).collect(), more))
    }
}

pub(crate) fn list(data: &[Value], more: bool) -> Outgoing {
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Outgoing::json(
        200,
        &json!({
            "object": "list", "data": data, "first_id": id(data.first()), "last_id": id(data.last()), "has_more": more,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_on_one_another() {
        let check = |limit: &str, after: Option<&str>, expected: Option<(&[&str], bool)>| {
            let paging = Paging { limit: Some(limit.into()), after: after.map(Into::into), ..Paging::default() };
            let page = paging.page(vec!["a", "b", "c"], |item| item, Length { default: 20, most: 100 }).ok();
            assert_eq!(page, expected.map(|(items, more)| (items.to_vec(), more)));
        };
        check("2", None, Some((&["a", "b"], true)));
        check("2", Some("b"), Some((&["c"], false)));
        check("3", None, Some((&["a", "b", "c"], false)));
        check("3", Some("c"), Some((&[], false)));
        check("3", Some("z"), None);
        check("0", None, None);
    }
}
