-- The columns of a row o, before a read knows what of it to return. :row_lane is its lane. :skips is a branch of CASE for rows
-- whose contents must not be evaluated.
--
-- too_large is the size of a row that is too large for a record in bytes, else NULL. It is never larger than the record would be,
-- so that the relay does not reject a row that Kafka might accept:
--
-- - The server knows the length of a text, and of json that is not compressed, without reading it. For json, it includes a header of up
--   to 4 bytes, which is less than what Kafka adds to a record.
-- - It does not know the length of jsonb. Headers that are stored uncompressed in few bytes are small. Others are measured in
--   uncompressed binary form (#> '{}' only uncompresses), because the text of jsonb could exceed the server's limit of 1 GB and
--   fail the read. The binary form has up to three times as many bytes as a record, hence the division by 4.
--
-- Large headers are returned only if they are an object of strings and of objects of strings, because a number of a few bytes can
-- have 131,072 digits. Other headers are invalid, and the read returns [] instead. The members of a value that is not an object
-- are none.
o.id, :row_lane AS lane, o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload,
CASE
    :skips WHEN (coalesce(:payload_length, 0)::bigint + octet_length(o.aggregate_id) + octet_length(o.event_type))
            > $5::integer
        OR octet_length(o.aggregate_type) > $5::integer
        OR (pg_column_size(o.headers) > 2000 OR pg_column_compression(o.headers) IS NOT NULL)
            AND CASE WHEN pg_column_size(o.headers) / 4 > $5::integer THEN pg_column_size(o.headers)
                     ELSE pg_column_size(o.headers #> '{}') END / 4 > $5::integer
    THEN (coalesce(:payload_length, 0)::bigint + octet_length(o.aggregate_id) + octet_length(o.event_type))
        + octet_length(o.aggregate_type)
        + coalesce(CASE WHEN pg_column_size(o.headers) / 4 > $5::integer THEN pg_column_size(o.headers)
                        ELSE pg_column_size(o.headers #> '{}') END, 0)
END AS too_large,
CASE
    :skips WHEN (pg_column_size(o.headers) > 2000 OR pg_column_compression(o.headers) IS NOT NULL)
        AND (jsonb_typeof(o.headers) <> 'object'
             OR o.headers @? '$.* ? (@.type() <> "string" && (@.type() <> "object" || exists(@.* ? (@.type() <> "string"))))')
    THEN '[]'
    ELSE o.headers
END AS headers,
o.created_at
