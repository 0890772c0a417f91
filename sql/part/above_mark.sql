-- The unsent rows of a lane above its mark. The mark applies only under the epoch $3 for which it was raised, as of the same snapshot.
-- If an excepted transaction has ended, the rows begin at :floor, which is a parameter.
--
-- If everything is paused, the lower bound is above every row, so that the server neither reads the index nor checks a pause for
-- each row.
--
-- Lanes are compared with = ANY (ARRAY[lane]). After a plain =, the planner knows that an order by lane and id is an order by id,
-- and could walk the primary key, past every sent row. It did so if the table was empty when its statistics were collected.
-- Without the equality, the primary key would need a sort, which the settings of transactions disable.
(hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane])
    AND o.sent_at IS NULL
    AND o.id > CASE WHEN EXISTS (SELECT FROM :pause WHERE topic IS NULL AND aggregate_id IS NULL) THEN 9223372036854775807
                    WHEN v.epoch = $3::bigint AND v.are_open THEN l.low
                    WHEN v.epoch = $3::bigint THEN least(l.low, :floor::bigint)
                    ELSE -9223372036854775808 END
