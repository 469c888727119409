use super::*;
use proptest::prelude::*;
use serde_json::json;

fn fault_of(text: &str) -> (FaultKind, String) {
    let fault = parse(text.as_bytes()).expect_err("a fault");
    (fault.kind, fault.pointer())
}

#[test]
fn numbers_keep_their_writing() {
    for text in
        ["1", "1.0", "1e400", "1E+5", "-0", "-0.0e-0", "9007199254740993", "0.1000000000000000055511151231257827"]
    {
        let value = parse(format!("[{text}]").as_bytes()).expect("JSON");
        assert_eq!(serde_json::to_string(&value).expect("JSON"), format!("[{text}]"));
    }
}

#[test]
fn serde_jsons_private_marks_are_members_like_any_other() {
    for text in [
        r#"{"$serde_json::private::Number":"1"}"#,
        r#"{"$serde_json::private::RawValue":"{\"a\":1}"}"#,
        r#"[{"$serde_json::private::Number":{"x":2}}]"#,
    ] {
        let value = parse(text.as_bytes()).expect("JSON");
        assert_eq!(serde_json::to_string(&value).expect("JSON"), text);
    }
}

#[test]
fn the_last_duplicate_wins() {
    assert_eq!(parse(br#"{"a":1,"b":2,"\u0061":3}"#).expect("JSON"), json!({"a": 3, "b": 2}));
}

#[test]
fn unpaired_surrogates_are_readable_faults_with_a_place() {
    for text in
        [r#"{"a":[0,"x\ud800y"]}"#, r#"{"a":[0,"\udc00"]}"#, r#"{"a":[0,"\ud800\ud800"]}"#, r#"{"a":[0,"\ud83d\n"]}"#]
    {
        assert_eq!(fault_of(text), (FaultKind::Surrogate, "/a/1".into()), "{text}");
    }
    assert!(parse(br#""\ud800""#).expect_err("a fault").is_readable());
    assert_eq!(parse(br#""\ud83d\ude00""#).expect("JSON"), json!("😀"));
}

#[test]
fn exponents_beyond_all_measure_are_readable_faults_with_a_place() {
    assert_eq!(fault_of(r#"{"a/b":{"c":1e99999999999999999999}}"#), (FaultKind::Exponent, "/a~1b/c".into()));
    assert!(parse(b"1e9223372036854775807").is_ok());
}

#[test]
fn broken_texts_are_faults_with_a_place() {
    for (text, pointer) in [
        ("", ""),
        ("{", ""),
        ("[1,]", "/1"),
        ("[1 2]", ""),
        (r#"{"a":}"#, "/a"),
        (r#"{"a" 1}"#, "/a"),
        ("{1:2}", ""),
        ("tru", ""),
        ("[nul]", "/0"),
        ("01", ""),
        ("-", ""),
        ("1.", ""),
        ("1e", ""),
        ("1e+", ""),
        (".5", ""),
        ("+1", ""),
        ("\"a", ""),
        ("\"\\", ""),
        ("\"\\x\"", ""),
        ("\"\\u12\"", ""),
        ("\"\\u00é\"", ""),
        ("\"\\ud800\\u12\"", ""),
        ("\"a\nb\"", ""),
        ("1 1", ""),
        ("{} x", ""),
        ("NaN", ""),
        ("'a'", ""),
        ("\u{feff}1", ""),
        ("[1}", ""),
        ("\"\\", ""),
    ] {
        let (kind, found) = fault_of(text);
        assert!(matches!(kind, FaultKind::Syntax(_)), "{text}");
        assert_eq!(found, pointer, "{text}");
    }
    assert_eq!(parse(b"\"\xff\"").expect_err("a fault").at, 1);
}

#[test]
fn nesting_ends_at_128() {
    let nested = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(parse(nested(128).as_bytes()).is_ok());
    assert_eq!(parse(nested(129).as_bytes()).expect_err("too deep").kind, FaultKind::Nesting);
    assert_eq!(parse("[".repeat(1_000_000).as_bytes()).expect_err("too deep").kind, FaultKind::Nesting);
}

#[test]
fn members_come_in_the_order_of_the_text() {
    let found = members(br#" {"b":[1, 2],"a":{"x":1e400},"b":null} "#).expect("an object");
    let found: Vec<(&str, &[u8])> = found.iter().map(|(name, value)| (name.as_str(), &value[..])).collect();
    assert_eq!(found, [("b", &b"[1, 2]"[..]), ("a", br#"{"x":1e400}"#), ("b", b"null")]);
    assert_eq!(members(b"[1]"), None);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read(value in value(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.expect("JSON");
        prop_assert_eq!(parse(text.as_bytes()).expect("JSON"), value);
    }

    /// On text of any kind: no panic, and the same verdict as serde_json.
    #[test]
    fn the_grammar_is_json(text in r#"[\[\]{}:,"a\\ue01+.\- tn\n]{0,12}|(\[|\{"a":|1|,|\]|\}|"\\u00e9"|"\\ud8|\\udc00"|true|-0\.5e7| ){0,10}"#) {
        let theirs = serde_json::from_str::<Value>(&text);
        match parse(text.as_bytes()) {
            Ok(ours) => prop_assert_eq!(theirs.map(|value| value.to_string().replace("e+", "e")).ok(), Some(ours.to_string().replace("e+", "e").replace('E', "e"))),
            Err(_) => prop_assert!(theirs.is_err(), "{:?}", text),
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = parse(&bytes);
    }
}
