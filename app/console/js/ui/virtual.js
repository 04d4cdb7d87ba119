// A list of any length: only the rows near the window exist. Heights are measured, since messages differ.
import { html, useEffect, useLayoutEffect, useReducer, useRef } from "../lib.js";
import {
  Virtualizer,
  elementScroll,
  observeElementOffset,
  observeElementRect,
} from "../../vendor/virtual-core/index.js";

/**
 * @param {object} props
 * @param {number} props.count  how many rows there are
 * @param {(index: number) => any} props.row  renders one
 * @param {number} props.estimate  height in pixels of a row that was not measured yet
 * @param {string} props.label  what the list is called
 * @param {string} props.height  CSS height of the scrolled window
 * @param {(first: number, last: number) => void} [props.onRange]  told which rows are wanted
 * @param {{index: number, align?: string}|null} [props.target]  where to scroll, each time it is a new object
 * @param {(index: number) => string|number} [props.rowKey]
 */
export function VirtualList({ count, row, estimate, label, height = "70vh", onRange, target, rowKey, overscan = 8 }) {
  const scroller = useRef(null);
  const [, draw] = useReducer((before) => before + 1, 0);
  const instance = useRef(null);
  const options = {
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => estimate,
    overscan,
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    getItemKey: rowKey ?? ((index) => index),
    onChange: draw,
  };
  if (instance.current === null) instance.current = new Virtualizer(options);
  const virtualizer = instance.current;
  virtualizer.setOptions(options);
  useEffect(() => virtualizer._didMount(), []);
  useLayoutEffect(() => virtualizer._willUpdate());
  useEffect(() => {
    if (target) virtualizer.scrollToIndex(target.index, { align: target.align ?? "start" });
  }, [target]);
  const rows = virtualizer.getVirtualItems();
  const first = rows[0]?.index ?? 0;
  const last = rows.at(-1)?.index ?? 0;
  useEffect(() => onRange?.(first, last), [first, last, count]);
  return html`<div class="virtual" ref=${scroller} style=${{ height }} tabindex="0" role="list" aria-label=${label}>
    <div class="content" role="presentation" style=${{ height: `${virtualizer.getTotalSize()}px` }}>
      ${rows.map(
        ({ index, key, start }) => html`<div
          key=${key} class="virtual-row" role="listitem" aria-setsize=${count} aria-posinset=${index + 1}
          data-index=${index} ref=${virtualizer.measureElement}
          style=${{ transform: `translateY(${start}px)` }}>${row(index)}</div>`,
      )}
    </div>
  </div>`;
}
