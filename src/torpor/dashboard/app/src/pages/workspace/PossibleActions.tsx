// What you can do with a workspace, with buttons and on the command line.

import { actions, type Action } from "../../actions.ts";
import type { Explanation, Me, Workspace } from "../../api-types.ts";
import type { PendingAction } from "../../hooks.ts";
import { Actions } from "../../parts/ActionButtons.tsx";
import { Command } from "../../parts/Command.tsx";
import { Card } from "../../parts/controls.tsx";

// Connect has the link that opens the workspace; an error has its own card.
const ELSEWHERE: readonly Action[] = ["open", "recover"];

interface Props {
  workspace: Workspace;
  me: Me;
  pending: PendingAction;
  explanation: Explanation | null;
}

export function PossibleActions({ workspace, me, pending, explanation }: Props) {
  if (actions(workspace, me).every((action) => ELSEWHERE.includes(action))) return null;
  const commands = explanation?.ways_out ?? [];
  return (
    <Card title="What you can do">
      <Actions workspace={workspace} me={me} pending={pending} without={ELSEWHERE} described />
      {commands.length > 0 && (
        <details class="commands">
          <summary>On the command line</summary>
          <ul class="lines">
            {commands.map((one) => (
              <li key={one.command}>
                <Command words={one.command} />
                <span class="dim">{one.means}</span>
              </li>
            ))}
          </ul>
        </details>
      )}
    </Card>
  );
}
