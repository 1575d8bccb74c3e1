/** The frame of a panel beside the chat; on narrow screens it lies over it. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { useApp } from "../state/app";
import { IconButton } from "./icon_button";

interface SidePanelProps {
  title: string;
  testId: string;
  children: ComponentChildren;
}

export function SidePanel({ title, testId, children }: SidePanelProps) {
  const { panels } = useApp();
  const id = useId();
  const heading = useRef<HTMLHeadingElement>(null);
  // Whoever opened it by keyboard goes on inside, and back to where they were at the end.
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    heading.current?.focus();
    return () => before?.focus?.();
  }, []);
  return (
    <aside class="side-panel" aria-labelledby={id} data-testid={testId}>
      <header>
        <h2 id={id} ref={heading} tabIndex={-1}>
          {title}
        </h2>
        <IconButton
          icon="close"
          label={`Close ${title}`}
          shortcut="Esc"
          testId="close-panel"
          isLarge
          onClick={() => {
            panels.side.value = null;
          }}
        />
      </header>
      <div class="side-panel-body">{children}</div>
    </aside>
  );
}
