//! How far a run of plain bytes goes, eight at a time: bodies are mostly text, and are passed over three times
//! (cut out, parsed, made canonical).

const ONES: u64 = u64::MAX / 255;
const HIGH: u64 = ONES << 7;

/// Bytes before the next quote, backslash or control character: what a JSON string may hold as it is.
pub fn plain(bytes: &[u8]) -> usize {
    let marks = |word| below(word, 0x20) | equal(word, b'"') | equal(word, b'\\');
    before(bytes, marks, |byte| matches!(byte, b'"' | b'\\' | ..b' '))
}

/// Bytes before the next line end.
pub fn line(bytes: &[u8]) -> usize {
    before(bytes, |word| equal(word, b'\n'), |byte| byte == b'\n')
}

/// `marks` must have a high bit set if, and only if, one of the eight bytes satisfies `ends`.
fn before(bytes: &[u8], marks: impl Fn(u64) -> u64, ends: impl Fn(u8) -> bool) -> usize {
    let mut at = 0;
    for chunk in bytes.chunks_exact(8) {
        if marks(u64::from_le_bytes(chunk.try_into().expect("chunks of eight"))) & HIGH != 0 {
            break;
        }
        at += 8;
    }
    let rest = &bytes[at..];
    at + rest.iter().position(|byte| ends(*byte)).unwrap_or(rest.len())
}

/// A high bit where a byte is below `bound`; above a true one there may be false ones.
fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(bound)) & !word
}

fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (ONES * u64::from(byte)), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn eight_at_a_time_is_one_at_a_time(bytes in prop::collection::vec(any::<u8>(), 0..40), head in 0usize..30) {
            let bytes = [vec![b'x'; head], bytes].concat();
            let expect = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' ')).unwrap_or(bytes.len());
            prop_assert_eq!(plain(&bytes), expect);
            let expect = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
            prop_assert_eq!(line(&bytes), expect);
        }
    }
}
