/** The list of shortcuts. */

import { SHORTCUTS } from "../lib/keyboard";
import { useApp } from "../state/app";
import { Dialog } from "./dialog";

export function HelpDialog() {
  const { panels } = useApp();
  const close = () => {
    panels.hasHelp.value = false;
  };
  return (
    <Dialog title="Keyboard shortcuts" onClose={close} testId="help-dialog">
      <dl class="shortcuts">
        {SHORTCUTS.map(({ keys, does }) => (
          <div key={keys}>
            <dt>
              {keys.split("+").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <p class="subtle">
        In the token view: ← and → go from token to token, Enter opens its alternatives, ↑ and ↓ choose one, Enter
        branches from it.
      </p>
    </Dialog>
  );
}
