-- A restart is a sleep that is followed by a wake at once.
ALTER TABLE sessions ADD COLUMN restart BIGINT NOT NULL DEFAULT 0 CHECK (restart IN (0, 1));
