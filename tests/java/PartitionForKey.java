import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Prints the partition that Kafka's own producer chooses for each key: arguments are the partition count, then keys in hex. */
class PartitionForKey {
    public static void main(String[] arguments) {
        int partitions = Integer.parseInt(arguments[0]);
        for (int i = 1; i < arguments.length; i++) {
            byte[] key = HexFormat.of().parseHex(arguments[i]);
            System.out.println(BuiltInPartitioner.partitionForKey(key, partitions));
        }
    }
}
