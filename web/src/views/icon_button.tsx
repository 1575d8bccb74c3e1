/** A button that is only an icon: its label is for screen readers and shows as a tooltip. */

import { Icon, type IconName } from "./icon";

interface IconButtonProps {
  icon: IconName;
  label: string;
  testId: string;
  /** Beside the label in the tooltip. */
  shortcut?: string;
  isLarge?: boolean;
  /** Whether what it opens is open. */
  isExpanded?: boolean;
  isDisabled?: boolean;
  /** Whether it is of no use while an answer is written; the chat's own style says so without drawing every message. */
  isIdleOnly?: boolean;
  onClick: () => void;
}

export function IconButton(props: IconButtonProps) {
  const { icon, label, shortcut } = props;
  const classes = ["icon-button", props.isLarge ? "" : "small", props.isIdleOnly ? "idle-only" : ""];
  return (
    <button
      type="button"
      class={classes.filter(Boolean).join(" ")}
      aria-label={label}
      aria-expanded={props.isExpanded}
      title={shortcut ? `${label} (${shortcut})` : label}
      data-testid={props.testId}
      disabled={props.isDisabled}
      onClick={props.onClick}
    >
      <Icon name={icon} />
    </button>
  );
}
