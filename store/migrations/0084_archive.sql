-- What an archived Session, which is asleep, or is to be archived, which is stopping, gives up beside its processes: its Sandbox, or
-- that and all of its disk but the Workspace.
ALTER TABLE sessions ADD COLUMN archive TEXT NOT NULL DEFAULT '' CHECK (archive IN ('', 'sandbox', 'disks'));
