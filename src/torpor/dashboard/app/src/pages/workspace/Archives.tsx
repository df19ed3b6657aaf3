// The archives of a workspace.

import { useState } from "preact/hooks";
import type { Archive, Workspace } from "../../api-types.ts";
import { Badge, Button, Card, Copyable, Placeholder, When } from "../../parts/controls.tsx";
import { Icon } from "../../parts/Icon.tsx";
import { size } from "../../sizes.ts";
import { ttl } from "../../time.ts";

export function Archives({ archives, workspace, now }: { archives: Archive[] | null; workspace: Workspace; now: number }) {
  const [all, setAll] = useState(false);
  const latest = archives?.[0];
  return (
    <Card title="Archives">
      {archives === null && <Placeholder lines={2} />}
      {archives?.length === 0 && (
        <p class="dim">
          None yet. You can archive the workspace. Torpor archives it {ttl(workspace.archive_ttl)} after it stops.
        </p>
      )}
      {latest && (
        <p class="proof">
          <Icon name="check" />
          <span>
            Last verified <When at={latest.proven_at} now={now} />
            <small class="block">Torpor read the archive back and compared each file with the manifest.</small>
          </span>
        </p>
      )}
      <ul class="lines">
        {(all ? archives : archives?.slice(0, 3))?.map((one) => (
          <li key={one.key}>
            <span>
              {size(one.home_bytes)} <small>{size(one.size_bytes)} stored</small>{" "}
              {one.key === workspace.archive_key && <Badge kind="good">latest</Badge>}
              <small class="block key">
                <Copyable text={one.key} label="the key" />
              </small>
            </span>
            <span class="dim">
              <When at={one.proven_at} now={now} />
            </span>
          </li>
        ))}
      </ul>
      {(archives?.length ?? 0) > 3 && (
        <Button weight="quiet" onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show all ${archives?.length}`}
        </Button>
      )}
    </Card>
  );
}
