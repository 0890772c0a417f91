-- The columns of a read row p. A row that is too large for a record has no large values. The types that determine its topic are
-- cut to a length that is too long for a topic. Its key is cut only if the key alone is too large.
--
-- :is_read is a condition, with AND, for the rows whose contents are read; :large_event_type is what a large row has of its type.
p.id, p.lane, p.event_id,
CASE WHEN :is_read p.too_large IS NULL THEN p.aggregate_type ELSE left(p.aggregate_type, 300) END,
CASE WHEN :is_read (p.too_large IS NULL OR octet_length(p.aggregate_id) <= $5::integer) THEN p.aggregate_id
     ELSE left(p.aggregate_id, 300) END,
CASE WHEN :is_read p.too_large IS NULL THEN p.event_type :large_event_type END,
CASE WHEN :is_read p.too_large IS NULL THEN p.payload END,
p.too_large,
CASE WHEN :is_read p.too_large IS NULL THEN p.headers END,
p.created_at
