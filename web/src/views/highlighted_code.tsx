/** Coloured code. The one place where HTML is set: what highlight.js makes, through DOMPurify, spans with classes only. */

import DOMPurify from "dompurify";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { useMemo } from "preact/hooks";

const LANGUAGES = {
  bash,
  c,
  cpp,
  css,
  diff,
  go,
  java,
  javascript,
  json,
  markdown,
  python,
  rust,
  sql,
  typescript,
  xml,
  yaml,
};
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

export interface HighlightedCodeProps {
  source: string;
  language: string;
}

export type Highlighter = typeof HighlightedCode;

export function HighlightedCode({ source, language }: HighlightedCodeProps) {
  const html = useMemo(() => highlight(source, language), [source, language]);
  if (html === null) return <code>{source}</code>;
  // Sanitised just above; the only such place
  return <code dangerouslySetInnerHTML={{ __html: html }} />;
}

/** Sanitised HTML, or null for a language that is not known. */
export function highlight(source: string, language: string): string | null {
  if (!hljs.getLanguage(language)) return null;
  const { value } = hljs.highlight(source, { language, ignoreIllegals: true });
  return DOMPurify.sanitize(value, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false });
}
