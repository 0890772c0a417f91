//! Which partition a key belongs to: the rule of Kafka's Java producer, so that consumers who join topics, and a
//! producer that writes the same topic beside the relay, agree with it.
//!
//! The cycle has to know the partition before it hands a row over (the first row of each goes alone), so it computes
//! it and names it, and librdkafka's own partitioner is never asked.

/// The partition of a key in a topic of `partitions` partitions, as
/// `org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey` computes it.
pub fn of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions
}

/// Murmur2, 32 bits, with the seed of `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn murmur2_gives_the_golden_values_of_the_java_client() {
        let golden: [(&[u8], i32); 8] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
            (b"a", -1_563_381_124),
        ];
        for (key, hash) in golden {
            assert_eq!(murmur2(key) as i32, hash, "{:?}", String::from_utf8_lossy(key));
        }
    }
}
