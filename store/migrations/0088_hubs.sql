-- The Hubs on this database that others reach under a peer_url. A Hub writes its row again every few seconds. Times are Unix ms.
CREATE TABLE hubs (
    id       TEXT   PRIMARY KEY,
    peer_url TEXT   NOT NULL CHECK (peer_url <> ''),
    seen_at  BIGINT NOT NULL
);

-- Which Hub has the terminals and commands of a Runner in its memory. '': whichever is asked. Its row in hubs may be gone.
ALTER TABLE runners ADD COLUMN hub TEXT NOT NULL DEFAULT '';
