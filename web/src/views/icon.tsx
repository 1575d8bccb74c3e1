/** Icons: strokes on a grid of 20, in the colour of the text. */

const PATHS = {
  add: "M10 4v12M4 10h12",
  back: "M12 5l-5 5 5 5",
  branch: "M6 5v10M6 9c0 2 8 1 8 4v2M4.5 5a1.5 1.5 0 1 0 3 0 1.5 1.5 0 1 0-3 0M12.5 15a1.5 1.5 0 1 0 3 0",
  check: "M4.5 10.5l3.5 3.5 7.5-8",
  chip: "M6 6h8v8H6zM8 3v3M12 3v3M8 14v3M12 14v3M3 8h3M3 12h3M14 8h3M14 12h3",
  close: "M5 5l10 10M15 5L5 15",
  columns: "M4 4h12v12H4zM10 4v12",
  copy: "M7 7h9v9H7zM4 13V4h9",
  down: "M10 4v11M5.5 10.5L10 15l4.5-4.5",
  download: "M10 3v9M6.5 8.5L10 12l3.5-3.5M4 16h12",
  edit: "M4 16l1-4 8-8 3 3-8 8zM11 6l3 3",
  forward: "M8 5l5 5-5 5",
  help: "M7.5 7.5c0-3.5 5.5-3.2 5.5-.2 0 2-2.7 2-2.7 4.2M10.3 14.6v.2",
  key: "M7 9a3.5 3.5 0 1 0 0 7a3.5 3.5 0 1 0 0-7M9.5 10.5L16 4M13 7l2.5 2.5",
  list: "M4 5h12v10H4zM8.5 5v10",
  more: "M5 10h.01M10 10h.01M15 10h.01",
  play: "M7 5l8 5-8 5z",
  refresh: "M15.5 8A6 6 0 1 0 16 11M16 4v4h-4",
  search: "M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4M13 13l3.5 3.5",
  send: "M10 16V5M5.5 9L10 4.5 14.5 9",
  sliders: "M4 6h7M15 6h1M4 14h1M9 14h7M11 6a2 2 0 1 0 4 0 2 2 0 1 0-4 0M5 14a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  stop: "M6 6h8v8H6z",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6",
  upload: "M10 12V3M6.5 6.5L10 3l3.5 3.5M4 16h12",
  warning: "M10 4l7 12H3zM10 9v3M10 14v.2",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
