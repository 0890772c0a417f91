-- The key has no pause. For :same_type, see key_not_blocked.sql.
NOT EXISTS (
    SELECT FROM :pause b
    WHERE hashtext(b.aggregate_id) = hashtext(o.aggregate_id) AND b.aggregate_id = o.aggregate_id:same_type)
