// Which workspaces are about to be stopped, and how are they kept awake?

import { may } from "../actions.ts";
import { useDoing, useNow } from "../hooks.ts";
import { useKept } from "../observable.ts";
import { house } from "../session.ts";
import { here, Link } from "../navigation.tsx";
import { exactly } from "../time.ts";
import { bannerWords, sleepingSoon, type Warned } from "../sleep-warnings.ts";
import type { Me } from "../api-types.ts";
import { keepAwake } from "../commands.ts";
import { Button, Wrong } from "./controls.tsx";
import { Icon } from "./Icon.tsx";

// More at once would hide the page.
const MOST_SHOWN = 3;

export function SleepBanners({ me }: { me: Me }) {
  const soon = sleepingSoon(useKept(house), me, useKept(here));
  if (soon.length === 0) return null;
  const more = soon.length - MOST_SHOWN;
  return (
    <section class="banners" aria-label="Workspaces that are stopped soon">
      {soon.slice(0, MOST_SHOWN).map((one) => (
        <SleepBanner key={one.id} workspace={one} me={me} />
      ))}
      {more > 0 && <p class="dim">and {more} more</p>}
    </section>
  );
}

function SleepBanner({ workspace, me }: { workspace: Warned; me: Me }) {
  const now = useNow(1000);
  const doing = useDoing();
  return (
    <div class="banner" data-sleeping-soon={workspace.name}>
      <Icon name="dark" />
      <p>
        <Link to={{ page: "workspace", name: workspace.name }}>{workspace.name}</Link>{" "}
        <time dateTime={workspace.sleeps_at} title={exactly(workspace.sleeps_at)}>
          {bannerWords(workspace.sleeps_at, now)}
        </time>
      </p>
      {may(workspace, me, "HOLD") && (
        <Button weight="strong" busy={doing.busy !== ""} onClick={() => void doing.run("hold", () => keepAwake(workspace))}>
          Keep awake for 1 hour
        </Button>
      )}
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
    </div>
  );
}
