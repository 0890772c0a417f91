-- The optional column topic, if it exists.
DO $$ BEGIN
    GRANT INSERT ({topic_column}) ON {outbox} TO {operator}, {writer};
    GRANT SELECT ({topic_column}) ON {outbox} TO {monitor};
EXCEPTION WHEN undefined_column THEN
    NULL;
END $$;
