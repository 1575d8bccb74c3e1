/** A block of code: its language, a copy button, and colours once it is finished. */

import { useEffect, useState } from "preact/hooks";
import { copyText } from "../lib/clipboard";
import type { Highlighter } from "./highlighted_code";
import { IconButton } from "./icon_button";

interface CodeBlockProps {
  source: string;
  language: string;
  isOpen: boolean;
}

/** Longer code stays plain: colouring it would hold up the page. */
const MAX_COLOURED = 20_000;

export function CodeBlock({ source, language, isOpen }: CodeBlockProps) {
  const Highlighted = useHighlighter(!isOpen && language !== "" && source.length <= MAX_COLOURED);
  return (
    <figure class="code-block" data-testid="code-block">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={source} label="Copy code" />
      </figcaption>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <pre tabIndex={0}>
        {Highlighted && !isOpen ? <Highlighted source={source} language={language} /> : <code>{source}</code>}
      </pre>
    </figure>
  );
}

let loaded: Highlighter | null = null;

/** The colouring component, loaded when the first finished block needs it. */
function useHighlighter(isWanted: boolean): Highlighter | null {
  const [component, setComponent] = useState<{ of: Highlighter } | null>(loaded && { of: loaded });
  useEffect(() => {
    if (!isWanted || component) return;
    let isCurrent = true;
    import("./highlighted_code").then(
      ({ HighlightedCode }) => {
        loaded = HighlightedCode;
        if (isCurrent) setComponent({ of: HighlightedCode });
      },
      () => undefined, // Colours are an extra: the code stays plain.
    );
    return () => {
      isCurrent = false;
    };
  }, [isWanted, component]);
  return isWanted ? (component?.of ?? null) : null;
}

export function CopyButton({ text, label }: { text: string | (() => string); label: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    if (!(await copyText(typeof text === "string" ? text : text()))) return;
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <IconButton
      icon={isCopied ? "check" : "copy"}
      label={isCopied ? "Copied" : label}
      testId="copy"
      onClick={() => void copy()}
    />
  );
}
