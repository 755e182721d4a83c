// The outline of each mark around (0, 0), as the data of an SVG path.

export const circle = (r: number) => `M${r},0A${r},${r} 0 1 1 ${-r},0A${r},${r} 0 1 1 ${r},0Z`;
export const diamond = (r: number) => `M0,${-r}L${r},0L0,${r}L${-r},0Z`;
export const cross = (r: number) => `M${-r},${-r}L${r},${r}M${r},${-r}L${-r},${r}`;
export const square = (r: number) => `M${-r},${-r}H${r}V${r}H${-r}Z`;
export const flag = (r: number) => `M${-r},${r * 1.6}V${-r * 1.6}L${r},${-r}L${-r},${-r * 0.2}`;

export function star(r: number): string {
  const corners = Array.from({ length: 10 }, (_, index) => {
    const radius = index % 2 ? r * 0.45 : r;
    const angle = (Math.PI * index) / 5 - Math.PI / 2;
    return `${(radius * Math.cos(angle)).toFixed(2)},${(radius * Math.sin(angle)).toFixed(2)}`;
  });
  return `M${corners.join("L")}Z`;
}
