-- The headers of a dead letter after a change. Headers that are not a JSON object stay as they are.
--
-- :stringify: the parameter that replaces values that are neither strings nor base64 by their JSON text, and drops null
-- :dropped: the parameter with the names of headers to drop
-- :added: the parameter with the headers to set, as a JSON object
-- :bad_header: the parameter with a JSON path that finds an invalid header
CASE WHEN headers IS NULL OR jsonb_typeof(headers) IN ('object', 'null') THEN nullif((
    SELECT coalesce(jsonb_object_agg(h.key, CASE
                        WHEN :stringify::boolean AND jsonb_build_object('h', h.value) @? :bad_header::text::jsonpath
                        THEN to_jsonb(h.value #>> '{}')
                        ELSE h.value
                    END), jsonb_build_object())
    FROM jsonb_each(CASE WHEN jsonb_typeof(headers) = 'object' THEN headers ELSE jsonb_build_object() END) AS h
    WHERE h.key <> ALL (:dropped::text[]) AND NOT (:stringify AND jsonb_typeof(h.value) = 'null')
) || :added::text::jsonb, jsonb_build_object()) ELSE headers END
