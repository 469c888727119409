use super::*;
use proptest::prelude::*;

/// What came out, in short: `name=value` for fields, `position@line value` for prompts, and the end.
fn cut(splitter: Splitter, slices: &[&[u8]]) -> (Vec<String>, Result<(), FrameError>) {
    let mut splitter = splitter;
    let mut frames = Vec::new();
    let mut end = slices.iter().try_for_each(|slice| splitter.push(slice, &mut frames));
    if end.is_ok() {
        end = splitter.finish(&mut frames);
    }
    let short = |frame| match frame {
        Frame::Field(FieldText { name, line, bytes }) => {
            let line = line.map(|line| format!("@{line}")).unwrap_or_default();
            format!("{name}{line}={}", String::from_utf8_lossy(&bytes))
        }
        Frame::Prompt(PromptText { position, line, bytes }) => {
            let line = line.map(|line| format!("@{line}")).unwrap_or_default();
            format!("{position}{line} {}", String::from_utf8_lossy(&bytes))
        }
    };
    (frames.into_iter().map(short).collect(), end)
}

fn check_json(body: &str, expect: &[&str]) {
    let (frames, end) = cut(Splitter::json(), &[body.as_bytes()]);
    assert_eq!((frames, end), (expect.iter().map(ToString::to_string).collect(), Ok(())), "{body}");
}

fn check_ndjson(body: &str, expect: &[&str]) {
    let (frames, end) = cut(Splitter::ndjson(), &[body.as_bytes()]);
    assert_eq!((frames, end), (expect.iter().map(ToString::to_string).collect(), Ok(())), "{body}");
}

/// The kind of error, its pointer, its line, and a word of its message.
fn refused(splitter: Splitter, body: &[u8], expect: (&str, &str, Option<u64>, &str)) {
    let (_, end) = cut(splitter, &[body]);
    let (kind, problem) = match end.expect_err("a fault") {
        FrameError::Malformed(problem) => ("malformed", problem),
        FrameError::TooLarge(problem) => ("too large", problem),
        FrameError::Invalid(problem) => ("invalid", problem),
    };
    let body = String::from_utf8_lossy(body);
    assert_eq!((kind, &problem.pointer[..], problem.line), (expect.0, expect.1, expect.2), "{body}: {problem:?}");
    assert!(problem.message.contains(expect.3), "{body}: {problem:?}");
}

#[test]
fn json_members_come_in_any_order() {
    check_json(
        r#"{"model":"m","prompts":["a",{"b":[1]}],"chunk":2}"#,
        &["model=\"m\"", "0 \"a\"", "1 {\"b\":[1]}", "chunk=2"],
    );
    check_json("\u{feff} {\r\n \"prompts\" : [ 1 , [2,3] ] , \"x\\ty\" : { } }\n\n", &["0 1", "1 [2,3]", "x\ty={ }"]);
    check_json(r#"{"\u0070rompts":[null],"a":1,"a":-2.5e7}"#, &["0 null", "a=1", "a=-2.5e7"]);
    check_json(r#"{"params":{"prompts":[1]},"prompts":["],[\"{"]}"#, &["params={\"prompts\":[1]}", "0 \"],[\\\"{\""]);
}

#[test]
fn json_that_cannot_be_read_is_malformed_at_its_byte() {
    for (body, pointer, word) in [
        ("", "", "empty"),
        (" \n", "", "empty"),
        ("\u{feff}", "", "empty"),
        ("{", "", "broken off"),
        ("x", "", "byte 0"),
        (r#"{"prompts":["a""#, "/prompts/1", "byte 15 of the body: the body is broken off"),
        (r#"{"prompts":["a","b"#, "/prompts/1", "broken off"),
        (r#"{"prompts":["a"]"#, "", "broken off"),
        (r#"{"prompts":["a",]}"#, "/prompts/1", "byte 16"),
        (r#"{"prompts":["a" "b"]}"#, "/prompts/1", "a comma or `]`"),
        (r#"{"prompts":[{"a":tru}]}"#, "/prompts/0", "byte 20"),
        (r#"{"model":nul,"prompts":[]}"#, "/model", "byte 12"),
        (r#"{"a":1 "b":2}"#, "", "byte 7"),
        (r#"{"a" 1}"#, "", "colon"),
        (r#"{a:1}"#, "", "string"),
        (r#"{"a":1,}"#, "", "string"),
        (r#"{"prompts":["a"]} x"#, "", "something follows"),
        (r#"{"prompts":[1],"prompts":[2]}"#, "/prompts", "twice"),
        (r#"{"prompts":["a"],"\u0070rompts":[]}"#, "/prompts", "twice"),
        ("{\"prompts\":[\"a\0\"]}", "/prompts/0", "control"),
        ("{\"prompts\":[\"a\nb\"]}", "/prompts/0", "byte 14"),
        ("{\"a\0\":1}", "", "control"),
        (r#"{"prompts":[1]]"#, "", "a comma or `}`"),
    ] {
        refused(Splitter::json(), body.as_bytes(), ("malformed", pointer, None, word));
    }
    refused(Splitter::json(), b"{\"prompts\":[\"a\",\"\xc3(\"]}", ("malformed", "/prompts/1", None, "invalid UTF-8"));
    refused(Splitter::json(), b"{\"prompts\":[\"a\",\"b\xff\"]}", ("malformed", "/prompts/1", None, "byte 18"));
    refused(Splitter::json(), b"\xef\xbb{\"prompts\":[1]}", ("malformed", "", None, "invalid UTF-8"));
    refused(Splitter::json(), b"\xff\xfe{\0", ("malformed", "", None, "byte 0"));
    let deep = |levels: usize| format!("{{\"prompts\":[{}{}]}}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(cut(Splitter::json(), &[deep(126).as_bytes()]).1, Ok(()));
    refused(Splitter::json(), deep(127).as_bytes(), ("malformed", "/prompts/0", None, "128"));
}

#[test]
fn json_that_is_no_batch_is_invalid() {
    for (body, pointer, word) in [
        ("[]", "", "object"),
        ("\"a\"", "", "object"),
        ("5", "", "object"),
        ("{}", "/prompts", "missing"),
        (r#"{"prompts":[]}"#, "/prompts", "at least one"),
        (r#"{"prompts":"a"}"#, "/prompts", "array"),
        (r#"{"prompts":null}"#, "/prompts", "array"),
        (r#"{"\ud800":1}"#, "", "surrogate"),
    ] {
        refused(Splitter::json(), body.as_bytes(), ("invalid", pointer, None, word));
    }
}

#[test]
fn ndjson_lines_are_prompts_after_a_header() {
    check_ndjson(
        "\u{feff}{\"batch\":{\"model\":\"m\",\"chunk\":2,\"chunk\":3}}\r\n\r\n\"a\"\r\n \t\n{\"b\" : 1} \n5",
        &["model@1=\"m\"", "chunk@1=2", "chunk@1=3", "0@3 \"a\"", "1@5 {\"b\" : 1}", "2@6 5"],
    );
    check_ndjson("\n\n{\"batch\":{}}\n\"a\"", &["0@4 \"a\""]);
    check_ndjson("\"a\"\n", &["0@1 \"a\""]);
    // U+2028, U+0085 and a lone carriage return end no line.
    check_ndjson("\"a\u{2028}b\u{85}\"\n[1,\r2]\n", &["0@1 \"a\u{2028}b\u{85}\"", "1@2 [1,\r2]"]);
}

#[test]
fn what_only_looks_like_a_header_is_a_prompt() {
    for line in [r#"{"batch":5}"#, r#"{"batch":{},"model":"m"}"#, r#"{"batch":{"\ud800":1}}"#] {
        check_ndjson(line, &[&format!("0@1 {line}")]);
    }
    check_ndjson("\"a\"\n{\"batch\":{}}", &["0@1 \"a\"", "1@2 {\"batch\":{}}"]);
}

#[test]
fn a_broken_line_is_malformed_with_its_number() {
    for (body, line, word) in [
        ("\"a\"\n{\"b\":}\n", 2, "byte 5 of the line"),
        ("\n\n{\"b\"\n", 3, "breaks off"),
        ("\"a\"\n\"b\n", 2, "inside a string"),
        ("\"a\" \"b\"\n", 1, "something follows"),
        ("\"a\"\n{\"b\":1", 2, "breaks off"),
        ("1,\n", 1, "something follows"),
        ("-\n1", 1, "breaks off"),
        ("\"a\"\n\0\n", 2, "byte 0 of the line"),
        ("[1]\n[1,\n2]", 2, "breaks off"),
        ("\u{feff}\"a\"\n\u{feff}\"b\"", 2, "byte 0"),
    ] {
        refused(Splitter::ndjson(), body.as_bytes(), ("malformed", "", Some(line), word));
    }
    refused(Splitter::ndjson(), b"\"a\"\n\"\xff\"\n", ("malformed", "", Some(2), "invalid UTF-8"));
    refused(Splitter::ndjson(), b"\xef\xbb", ("malformed", "", Some(1), "broken off"));
    let deep = |levels: usize| format!("{}{}\n", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(cut(Splitter::ndjson(), &[deep(128).as_bytes()]).1, Ok(()));
    refused(Splitter::ndjson(), deep(129).as_bytes(), ("malformed", "", Some(1), "128"));
    for body in ["", "\n \r\n", "{\"batch\":{}}\n"] {
        let line = body.matches('\n').count() as u64 + 1;
        refused(Splitter::ndjson(), body.as_bytes(), ("invalid", "/prompts", Some(line), "at least one"));
    }
}

#[test]
fn bounds_hold() {
    let bounds = Bounds { frame_bytes: 10, field_bytes: 20, fields: 3, prompts: 2 };
    let json = |body: &str| cut(Splitter::json_within(bounds), &[body.as_bytes()]).1;
    assert_eq!(json(r#"{"prompts":["12345678",1234567890]}"#), Ok(()));
    refused(
        Splitter::json_within(bounds),
        br#"{"prompts":["a","123456789"]}"#,
        ("too large", "/prompts/1", None, "10 bytes: shorten it, send images by URL, or raise BATCHGATE_MAX_PROMPT"),
    );
    refused(Splitter::json_within(bounds), br#"{"prompts":[1,2,3]}"#, ("invalid", "/prompts", None, "more than 2"));
    refused(Splitter::json_within(bounds), br#"{"a":1,"b":2,"c":3,"d":4}"#, ("too large", "", None, "3 members"));
    refused(Splitter::json_within(bounds), br#"{"a":"123456","b":"1234567"}"#, ("too large", "/b", None, "20 bytes"));
    refused(Splitter::json_within(bounds), br#"{"a-name-beyond-all-measure":1}"#, ("too large", "", None, "20 bytes"));
    let ndjson = |body: &str| cut(Splitter::ndjson_within(bounds), &[body.as_bytes()]).1;
    assert_eq!(ndjson("\"12345678\"\n1234567890"), Ok(()));
    refused(Splitter::ndjson_within(bounds), b"1\n\"123456789\"", ("too large", "", Some(2), "10 bytes"));
    refused(Splitter::ndjson_within(bounds), b"1\n2\n3\n", ("invalid", "/prompts", Some(3), "more than 2"));
    let wide = Bounds { frame_bytes: 100, ..bounds };
    refused(
        Splitter::ndjson_within(wide),
        br#"{"batch":{"a":"12345678901234567890"}}"#,
        ("too large", "", Some(1), "20 bytes"),
    );
}

#[test]
fn prompts_are_counted_as_they_come() {
    let mut splitter = Splitter::json();
    let mut frames = Vec::new();
    splitter.push(br#"{"prompts":["a","b""#, &mut frames).expect("no fault yet");
    assert_eq!((splitter.prompts(), frames.len()), (2, 2));
}

/// Cuts a body at the given places, and in every single byte.
fn sliced(new: fn(Bounds) -> Splitter, body: &[u8], places: &[usize], bounds: Bounds) -> Result<(), TestCaseError> {
    let whole = cut(new(bounds), &[body]);
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    prop_assert_eq!(&whole, &cut(new(bounds), &bytes));
    let mut places: Vec<usize> = places.iter().map(|place| place % (body.len() + 1)).collect();
    places.extend([0, body.len()]);
    places.sort_unstable();
    let slices: Vec<&[u8]> = places.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect();
    prop_assert_eq!(&whole, &cut(new(bounds), &slices));
    Ok(())
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"prompts\":[", "\"a\":", "\"é\\u00e9\"", "1", "-2.5e7", "true", "null", " ", "\r\n", "\n",
            "{\"batch\":{\"a\":1}}\n", "{\"b\":[1,\"x\"]}", "\"Say 0\",", "\"Say 0\"\n", "{\"prompts\":[", "\u{feff}",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// However the stream is sliced: the same frames, the same fault. Whatever is in it: no panic.
    #[test]
    fn slices_do_not_matter(
        pieces in prop::collection::vec(piece(), 0..20),
        places in prop::collection::vec(any::<usize>(), 0..5),
        small in any::<bool>(),
    ) {
        let body = pieces.concat();
        let bounds = if small { Bounds { frame_bytes: 9, field_bytes: 12, fields: 2, prompts: 3 } } else { Bounds::default() };
        sliced(Splitter::json_within, &body, &places, bounds)?;
        sliced(Splitter::ndjson_within, &body, &places, bounds)?;
        let prefixed = [b"{\"prompts\":[".as_slice(), &body].concat();
        sliced(Splitter::json_within, &prefixed, &places, bounds)?;
    }

    /// Every prompt of a sound body comes out as it went in, in both forms.
    #[test]
    fn prompts_come_out_as_they_went_in(texts in prop::collection::vec(any::<String>(), 1..20), before in any::<bool>()) {
        let prompts: Vec<String> = texts.iter().map(|text| serde_json::to_string(text).expect("text")).collect();
        let array = format!("\"prompts\":[{}]", prompts.join(" ,"));
        let json = if before { format!("{{{array},\"model\":\"m\"}}") } else { format!("{{\"model\":\"m\",{array}}}") };
        let (frames, end) = cut(Splitter::json(), &[json.as_bytes()]);
        prop_assert_eq!(end, Ok(()));
        let found: Vec<&String> = frames.iter().filter(|frame| !frame.starts_with("model")).collect();
        for (n, prompt) in prompts.iter().enumerate() {
            prop_assert_eq!(found[n], &format!("{n} {prompt}"));
        }
        let ndjson = format!("{{\"batch\":{{\"model\":\"m\"}}}}\n{}", prompts.join("\r\n"));
        let (frames, end) = cut(Splitter::ndjson(), &[ndjson.as_bytes()]);
        prop_assert_eq!(end, Ok(()));
        for (n, prompt) in prompts.iter().enumerate() {
            prop_assert_eq!(&frames[n + 1], &format!("{n}@{} {prompt}", n + 2));
        }
    }
}
