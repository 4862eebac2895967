-- A browser's visits to places that have an origin of their own: ports of Sessions. A visit begins as a code, which is good once, for
-- the browser that asked for it, and then is a cookie of that origin. It ends with the browser's session at the Hub. Of code and
-- cookie the SHA-256 is kept only. Times are Unix ms.
CREATE TABLE visits (
    hash       BYTEA  PRIMARY KEY,
    browser    BYTEA  NOT NULL REFERENCES credentials (hash) ON DELETE CASCADE,
    place      TEXT   NOT NULL CHECK (place <> ''),
    asked      BYTEA, -- of a code: SHA-256 of what the browser that asked keeps; NULL: a cookie
    expires_at BIGINT NOT NULL
);
CREATE INDEX visits_browser ON visits (browser);
CREATE INDEX visits_expires ON visits (expires_at);
