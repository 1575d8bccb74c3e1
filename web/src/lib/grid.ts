/** A grid of cells that fits many or few into a width. */

export interface Grid {
  columns: number;
  /** Distance between the beginnings of two cells, and the space between them, in pixels. */
  pitch: number;
  gap: number;
  width: number;
  height: number;
  length: number;
}

const TARGET_HEIGHT = 240;

/** Cells from 4 to 14 pixels, as large as the target height allows. */
export function gridFor(length: number, width: number): Grid {
  let pitch = 14;
  while (pitch > 4 && Math.ceil(length / columnsOf(width, pitch)) * pitch > TARGET_HEIGHT) pitch--;
  const columns = columnsOf(width, pitch);
  const gap = pitch > 6 ? 2 : 1;
  return { columns, pitch, gap, width, height: Math.max(Math.ceil(length / columns), 1) * pitch, length };
}

/** The cell at a point, or null outside. */
export function cellAt(grid: Grid, x: number, y: number): number | null {
  const column = Math.floor(x / grid.pitch);
  if (x < 0 || y < 0 || column >= grid.columns) return null;
  const cell = Math.floor(y / grid.pitch) * grid.columns + column;
  return cell < grid.length ? cell : null;
}

function columnsOf(width: number, pitch: number): number {
  return Math.max(Math.floor(width / pitch), 1);
}
