// The archives of a workspace, with the buttons to go back to one and to fork one.

import { useRef, useState } from "preact/hooks";
import { may } from "../../actions.ts";
import type { Archive, ArchiveList, Me, Workspace } from "../../api-types.ts";
import { cancelRestore, fork, restore } from "../../commands.ts";
import { usePendingAction } from "../../hooks.ts";
import { go } from "../../navigation.tsx";
import { Badge, Button, Card, Copyable, ErrorMessage, Placeholder, TextField, When } from "../../parts/controls.tsx";
import { Dialog } from "../../parts/Dialog.tsx";
import { size } from "../../sizes.ts";
import { exactly, ttl } from "../../time.ts";

interface Props {
  list: ArchiveList | null;
  workspace: Workspace;
  me: Me;
  now: number;
}

type OpenDialog = { dialog: "restore" | "fork"; archive: Archive } | null;

const SHOWN = 3;
const SHORT_KEY = 8;

/** As `torpor archives` shows it. */
function shortKey(key: string): string {
  return key.slice(key.indexOf("/") + 1).slice(0, SHORT_KEY);
}

export function Archives({ list, workspace, me, now }: Props) {
  const [all, setAll] = useState(false);
  const [dialog, setDialog] = useState<OpenDialog>(null);
  const pending = usePendingAction();
  const archives = list?.items ?? null;
  const isDeleted = workspace.deleted_at !== null;
  return (
    <Card title="Archives">
      {archives === null && <Placeholder lines={2} />}
      {archives?.length === 0 && (
        <p class="dim">
          None yet. You can archive the workspace. Torpor archives it {ttl(workspace.archive_ttl)} after it stops.
        </p>
      )}
      {workspace.restore && (
        <div class="restoring" role="status">
          <p>
            The home is being replaced by an older archive. The present home is archived first.
            <small class="block key">{workspace.restore.archive_key}</small>
          </p>
          {may(workspace, me, "RESTORE") && (
            <Button busy={pending.busy === "cancel"} onClick={() => void pending.run("cancel", () => cancelRestore(workspace))}>
              Cancel restore
            </Button>
          )}
        </div>
      )}
      {!dialog && <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>}
      <ul class="lines archives">
        {(all ? archives : archives?.slice(0, SHOWN))?.map((one) => (
          <li key={one.key} data-archive={one.key}>
            <span>
              <When at={one.made_at} now={now} /> {one.is_current && <Badge kind="good">current</Badge>}{" "}
              {one.is_damaged && <Badge kind="bad">damaged</Badge>}
              <small class="block">
                {size(one.home_bytes)} home · {size(one.size_bytes)} stored · {size(one.new_bytes)} new
              </small>
              {one.is_damaged && (
                <small class="block">A part of it is missing or damaged in the archive store. It cannot be restored.</small>
              )}
              <small class="block key">
                verified <When at={one.proven_at} now={now} /> · <Copyable text={one.key} short={shortKey(one.key)} label="the key" />
              </small>
            </span>
            {!isDeleted && !one.is_damaged && (
              <span class="actions">
                {may(workspace, me, "RESTORE") && (
                  <Button
                    disabled={workspace.restore !== null}
                    label={`Restore the archive of ${exactly(one.made_at)}`}
                    onClick={() => setDialog({ dialog: "restore", archive: one })}
                  >
                    Restore
                  </Button>
                )}
                {may(workspace, me, "FORK") && (
                  <Button
                    label={`Fork the archive of ${exactly(one.made_at)}`}
                    onClick={() => setDialog({ dialog: "fork", archive: one })}
                  >
                    Fork
                  </Button>
                )}
              </span>
            )}
          </li>
        ))}
      </ul>
      {(archives?.length ?? 0) > SHOWN && (
        <Button weight="quiet" onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show all ${archives?.length}`}
        </Button>
      )}
      {dialog?.dialog === "restore" && (
        <RestoreDialog archive={dialog.archive} workspace={workspace} onClose={() => setDialog(null)} />
      )}
      {dialog?.dialog === "fork" && (
        <ForkDialog
          archive={dialog.archive}
          workspace={workspace}
          hasChanges={(list?.has_changes ?? false) || !dialog.archive.is_current}
          onClose={() => setDialog(null)}
        />
      )}
    </Card>
  );
}

interface DialogProps {
  archive: Archive;
  workspace: Workspace;
  onClose: () => void;
}

function RestoreDialog({ archive, workspace, onClose }: DialogProps) {
  const pending = usePendingAction();
  const confirm = async (): Promise<void> => {
    if (await pending.run("restore", () => restore(workspace, archive.key))) onClose();
  };
  return (
    <Dialog
      title={`Restore ${workspace.name}?`}
      confirm="Restore"
      busy={pending.busy === "restore"}
      error={pending.error}
      onConfirm={() => void confirm()}
      onClose={onClose}
    >
      <p>
        The home becomes as it was on <strong>{exactly(archive.made_at)}</strong>.
      </p>
      <p>
        {workspace.desired_state === "RUNNING"
          ? "The workspace is stopped, its present home is archived first, and it is started again afterwards."
          : "The present home is archived first."}{" "}
        You can go back: the present home is then in the list of archives.
      </p>
    </Dialog>
  );
}

function ForkDialog({ archive, workspace, hasChanges, onClose }: DialogProps & { hasChanges: boolean }) {
  const pending = usePendingAction();
  const [name, setName] = useState("");
  const sent = useRef({ name: "", key: "" });
  const confirm = async (): Promise<void> => {
    const made = await pending.run("fork", async () => {
      // The same request after a lost response has the same key; another request gets a new one.
      if (sent.current.name !== name) sent.current = { name, key: crypto.getRandomValues(new Uint32Array(4)).join("-") };
      const forked = await fork(workspace, { name, archive_key: archive.key }, sent.current.key);
      go({ page: "workspace", name: forked.name });
    });
    if (made) onClose();
  };
  return (
    <Dialog
      title={`Fork ${workspace.name}`}
      confirm="Fork"
      busy={pending.busy === "fork"}
      error={pending.error}
      onConfirm={() => void confirm()}
      onClose={onClose}
    >
      <p>
        A new workspace of yours starts with a copy of the home as it was on <strong>{exactly(archive.made_at)}</strong>. It has
        the same template, command, variables and size. Secrets are not copied.
      </p>
      {hasChanges && <p>Changes of {workspace.name} since this archive are not part of the copy.</p>}
      <TextField
        label="Name"
        hint="a–z, 0–9 and -, at most 40 characters. The name is part of the address."
        value={name}
        onValue={setName}
        required
        maxLength={40}
        autocomplete="off"
        pattern="[a-z0-9]([a-z0-9\-]{0,38}[a-z0-9])?"
        title="a to z, 0 to 9 and -, at most 40 characters"
      />
    </Dialog>
  );
}
