// The status as an icon: a full disc when running, a half disc when stopped, a crescent when archived.

import type { Phase } from "../api-types.ts";

const LIT: Record<Phase, string | null> = {
  RUNNING: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  STANDBY: "M12 3a9 9 0 0 1 0 18z",
  ARCHIVED: "M12 3a9 9 0 0 1 0 18 13 13 0 0 0 0-18z",
  PENDING: null,
  ERROR: null,
  DELETING: null,
  DELETED: null,
};

export function StatusIcon({ phase, moving = false, size = 22 }: { phase: Phase; moving?: boolean; size?: number }) {
  const lit = LIT[phase];
  return (
    <svg class="status-icon" data-phase={phase} data-moving={moving} viewBox="0 0 24 24" width={size} height={size} aria-hidden="true">
      <circle class="ring" cx="12" cy="12" r="9" />
      {lit && <path class="lit" d={lit} />}
      {phase === "ERROR" && <path class="mark" d="M12 7v6M12 16.500v.1" />}
      {moving && <circle class="orbit" cx="12" cy="12" r="9" pathLength="100" />}
    </svg>
  );
}
