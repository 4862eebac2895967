-- Which versions a Session was ever to stand on. Its Runner may still run an older one of them when it is to be awake on the
-- newest, and says so; of a version that the Session was never given, a Runner is not believed.
CREATE TABLE session_versions (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    version_id TEXT NOT NULL REFERENCES versions (id),
    PRIMARY KEY (session_id, version_id)
);
INSERT INTO session_versions (session_id, version_id) SELECT id, version_id FROM sessions;
