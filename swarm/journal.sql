-- journal: numbers that must never be handed out twice; pool: the last forgotten epoch
CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE draws (epoch INTEGER PRIMARY KEY, next INTEGER NOT NULL);

-- outbox: own groups waiting for a frame, and sealed frames as they are served
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT, epoch INTEGER NOT NULL, plain BLOB NOT NULL
);
CREATE TABLE frames (
    content_id BLOB PRIMARY KEY, created REAL NOT NULL, size INTEGER NOT NULL,
    groups INTEGER NOT NULL, env_digest BLOB NOT NULL, informative INTEGER NOT NULL,
    frame BLOB NOT NULL
);
CREATE INDEX frames_created ON frames (created);

-- admission: every draw of an external author that was looked at
CREATE TABLE seen (
    author BLOB, epoch INTEGER, number INTEGER, digest BLOB NOT NULL,
    PRIMARY KEY (author, epoch, number)
) WITHOUT ROWID;
CREATE INDEX seen_epoch ON seen (epoch);

-- pool: admitted groups that may still be used, and in how many updates they were
CREATE TABLE pool (
    author BLOB, epoch INTEGER, number INTEGER, received REAL NOT NULL,
    informative INTEGER NOT NULL, size INTEGER NOT NULL, env TEXT NOT NULL,
    level INTEGER NOT NULL, rewards BLOB NOT NULL, policy_step INTEGER NOT NULL,
    contents BLOB NOT NULL, uses INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (author, epoch, number)
);

-- accounts: what each author sent, took and got wrong
CREATE TABLE accounts (
    author BLOB PRIMARY KEY, bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL,
    admitted INTEGER NOT NULL, strikes REAL NOT NULL, struck_at REAL NOT NULL,
    barred INTEGER NOT NULL, touched REAL NOT NULL,
    earned REAL NOT NULL DEFAULT 0, earned_at REAL NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0, admitted_at REAL NOT NULL DEFAULT 0
);
CREATE TABLE refusals (
    author BLOB, reason TEXT, n INTEGER NOT NULL, PRIMARY KEY (author, reason)
) WITHOUT ROWID;

-- pool: which update used which group, a row a use; own groups have author x''
CREATE TABLE used (
    use INTEGER PRIMARY KEY, author BLOB NOT NULL, epoch INTEGER NOT NULL,
    number INTEGER NOT NULL, step INTEGER NOT NULL, trained INTEGER NOT NULL
);
CREATE INDEX used_key ON used (author, epoch, number);
CREATE INDEX used_step ON used (step);

-- unfinished: own groups begun that no update has used, and what is written of their completions
CREATE TABLE begun (
    ticket INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, number INTEGER NOT NULL,
    env TEXT NOT NULL, level INTEGER NOT NULL, seed INTEGER NOT NULL, version INTEGER NOT NULL
);
CREATE TABLE written (
    ticket INTEGER, place INTEGER, turn INTEGER, finish INTEGER, ids BLOB NOT NULL,
    logprobs BLOB NOT NULL, versions BLOB NOT NULL, observation TEXT,
    PRIMARY KEY (ticket, place, turn)
) WITHOUT ROWID;
