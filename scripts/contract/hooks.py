"""What schemathesis has to be told about this API."""
import itertools, json, os, re

import schemathesis

NDJSON = "application/x-ndjson"
CALLS = itertools.count()


@schemathesis.hook
def before_load_schema(context, raw_schema):
    # Lines are text to the document. Here they are a list, so that they are made of headers and prompts, good and bad.
    content = raw_schema["paths"]["/batches"]["post"]["requestBody"]["content"]
    prompt = {"$ref": "#/components/schemas/Prompt"}
    lines = {"type": "array", "items": {"anyOf": [prompt, {"$ref": "#/components/schemas/BatchHeader"}]}, "minItems": 1}
    examples = content[NDJSON].get("examples", {}).values()
    content[NDJSON] = {
        "schema": lines,
        "examples": {
            str(n): {"value": [json.loads(line) for line in example["value"].splitlines()]}
            for n, example in enumerate(examples)
        },
    }
    # With keys configured they are asked for: then `no security at all` is no choice.
    if os.environ.get("CONTRACT_KEYED"):
        raw_schema["security"] = [choice for choice in raw_schema["security"] if choice]


@schemathesis.serializer(NDJSON)
def as_lines(context, value):
    if not isinstance(value, list):
        return json.dumps(value).encode()
    return "".join(json.dumps(line) + "\n" for line in value).encode()


@schemathesis.hook
def before_call(context, case, kwargs):
    # A key twice is the first answer again, of a batch that may be deleted by then: right, and to schemathesis a created
    # batch that is not there. tests/it/path/idempotency.rs tells those stories; here every key is used once.
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch("[!-~]([ -~]{0,198}[!-~])?", key):
        case.headers["Idempotency-Key"] = f"{key}-{next(CALLS)}"
    # Bodies leave schemathesis as they are, whatever coding the header promises; tests/it/path/codings.rs packs them.
    if (case.headers or {}).get("Content-Encoding") in ("gzip", "zstd"):
        del case.headers["Content-Encoding"]
