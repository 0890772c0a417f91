//! Writes and reads entries. Numbers are written so that the order of the bytes is the order of the numbers.

/// Inverts the sign, so that negative numbers sort first.
const SIGN: u64 = 1 << 63;

/// Fills an entry from its beginning.
pub(crate) struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    pub(crate) fn new() -> Writer<N> {
        Writer { bytes: [0; N], at: 0 }
    }

    /// # Panics
    ///
    /// If the entry is full. Every entry has a fixed layout, so a test finds that.
    pub(crate) fn put(mut self, bytes: &[u8]) -> Writer<N> {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    pub(crate) fn u8(self, number: u8) -> Writer<N> {
        self.put(&[number])
    }

    pub(crate) fn u32(self, number: u32) -> Writer<N> {
        self.put(&number.to_be_bytes())
    }

    pub(crate) fn i64(self, number: i64) -> Writer<N> {
        self.put(&(number as u64 ^ SIGN).to_be_bytes())
    }

    /// The entry. The rest is filled with zeros.
    pub(crate) fn entry(self) -> [u8; N] {
        self.bytes
    }
}

/// Reads an entry from its beginning.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut bytes = [0; N];
        bytes.copy_from_slice(taken);
        bytes
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub(crate) fn i64(&mut self) -> i64 {
        (u64::from_be_bytes(self.take()) ^ SIGN) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_sort_like_numbers() {
        let numbers = [i64::MIN, -2, -1, 0, 1, 2, i64::MAX];
        let written = numbers.map(|number| Writer::<8>::new().i64(number).entry());
        assert!(written.is_sorted());
        assert_eq!(written.map(|bytes| Reader(&bytes).i64()), numbers);
    }
}
