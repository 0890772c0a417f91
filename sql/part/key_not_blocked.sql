-- The key has no block. If two types can share a topic, :same_type is empty: the type is not part of the key, because rows of a
-- topic and an aggregate_id must wait together.
NOT EXISTS (
    SELECT FROM :blocked_key b
    WHERE hashtext(b.aggregate_id) = hashtext(o.aggregate_id) AND b.aggregate_id = o.aggregate_id:same_type)
