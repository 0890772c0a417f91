//! Which partition a key belongs to. The rule is that of Kafka's Java producer, so other producers of the topic and
//! consumers that join topics agree with it.
//!
//! The cycle computes the partition itself because it must know it before it sends a row: the first row of each partition
//! is sent alone. librdkafka's partitioner is never used.

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
        for (position, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * position);
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

    /// The values of Kafka's `UtilsTest.testMurmur2`.
    #[test]
    fn murmur2_matches_the_java_client() {
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
