export function SearchView(_props: { message: unknown; isLive: boolean }) {
  return null;
}
