// A list of any length: only the rows near the window exist. Heights are measured, since messages differ.
import { drawnNow, html, useEffect, useLayoutEffect, useReducer, useRef } from "../lib.js";
import {
  Virtualizer,
  defaultRangeExtractor,
  observeElementOffset,
  observeElementRect,
} from "../../vendor/virtual-core/index.js";

/** What a person does to scroll; from then on the list no longer holds on to its target. */
const BY_HAND = ["wheel", "touchstart", "pointerdown", "keydown"];
const OFF_BY_PX = 1.5;
const sameIndex = (index) => index;

/**
 * What is at the upper edge stays there while heights above it change. A target stays where it was scrolled to, however
 * late the rows around it come, until somebody scrolls. The row that has the focus exists wherever the window is.
 *
 * @param {object} props
 * @param {number} props.count  how many rows there are
 * @param {(index: number) => any} props.row  renders one
 * @param {number} props.estimate  height in pixels of a row that was not measured yet
 * @param {string} props.label  what the list is called
 * @param {string} props.height  CSS height of the scrolled window
 * @param {(first: number, last: number) => void} [props.onRange]  told which rows are wanted, some outside the window too
 * @param {(first: number, last: number) => void} [props.onVisible]  told which rows are in the window
 * @param {{index: number, align?: string, focus?: boolean, isStart?: boolean}|null} [props.target]  where to
 *   scroll, each time it is a new object; `focus` puts the focus on the list, so that arrow keys scroll on from there;
 *   `isStart` leaves the page around the list where it is
 * @param {(index: number) => string|number} [props.rowKey]  the same function each time, lest all heights be looked up anew
 */
export function VirtualList(props) {
  const { count, row, estimate, label, height = "70vh", onRange, onVisible, target, rowKey = sameIndex } = props;
  const { overscan = 6 } = props;
  const scroller = useRef(null);
  const [, draw] = useReducer((before) => before + 1, 0);
  const focused = useRef(null);
  const wanted = useRef(null);
  const instance = useRef(null);
  const isDrawing = useRef(true);
  isDrawing.current = true;
  const options = {
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => estimate,
    overscan,
    observeElementRect,
    observeElementOffset,
    scrollToFn: scrolled,
    getItemKey: rowKey,
    rangeExtractor: (range) => withRow(defaultRangeExtractor(range), focused.current, count),
    onChange: () => (isDrawing.current ? draw() : drawnNow(draw)),
  };
  if (instance.current === null) {
    instance.current = new Virtualizer(options);
    instance.current.shouldAdjustScrollPositionOnItemSizeChange = isAboveWindow;
  }
  const virtualizer = instance.current;
  virtualizer.setOptions(options);
  useEffect(() => virtualizer._didMount(), []);
  useLayoutEffect(() => {
    virtualizer._willUpdate();
    isDrawing.current = false;
  });
  useEffect(() => {
    const letGo = (event) => {
      wanted.current = endAskedFor(event, scroller.current, virtualizer.options.count);
      if (wanted.current === null) return;
      event.preventDefault(); // the browser would go where the end is by what was measured so far
      virtualizer.scrollToIndex(wanted.current.index, { align: wanted.current.align });
    };
    BY_HAND.forEach((kind) => scroller.current.addEventListener(kind, letGo, { passive: kind !== "keydown" }));
    return () => BY_HAND.forEach((kind) => scroller.current?.removeEventListener(kind, letGo));
  }, []);
  useEffect(() => {
    if (!target || count === 0) return;
    wanted.current = target;
    virtualizer.scrollToIndex(target.index, { align: target.align ?? "start" });
    if (!target.isStart) scroller.current.scrollIntoView({ block: "nearest" });
    if (target.focus) scroller.current.focus({ preventScroll: true });
  }, [target, count === 0]);
  useEffect(() => {
    const held = wanted.current;
    if (held === null || virtualizer.scrollState !== null) return;
    const place = virtualizer.getOffsetForIndex(held.index, held.align ?? "start");
    if (place && Math.abs(place[0] - scroller.current.scrollTop) > OFF_BY_PX) {
      virtualizer.scrollToIndex(held.index, { align: held.align ?? "start" });
    }
  });
  const rows = virtualizer.getVirtualItems();
  const { startIndex = 0, endIndex = 0 } = virtualizer.range ?? {};
  const isReady = virtualizer.range !== null;
  useEffect(() => {
    if (!isReady) return;
    onRange?.(Math.max(0, startIndex - overscan), Math.min(count - 1, endIndex + overscan));
    onVisible?.(startIndex, endIndex);
  }, [isReady, startIndex, endIndex, count]);
  return html`<div class="virtual" ref=${scroller} style=${{ height }} tabindex="0" role="list" aria-label=${label}
    onFocusIn=${(event) => (focused.current = indexOf(event.target))} onFocusOut=${() => (focused.current = null)}>
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

/** The target of a key that means an end of the list; null where the event is anything else. */
function endAskedFor({ type, key, target, ctrlKey, altKey, metaKey, shiftKey }, scroller, count) {
  if (type !== "keydown" || target !== scroller || count === 0 || ctrlKey || altKey || metaKey || shiftKey) return null;
  if (key === "End") return { index: count - 1, align: "end" };
  return key === "Home" ? { index: 0, align: "start" } : null;
}

/** Corrections go from where the element is: since the last event that told of its place, somebody may have scrolled. */
function scrolled(offset, { adjustments, behavior }, { scrollElement }) {
  if (!scrollElement) return;
  const top = adjustments === undefined ? offset : scrollElement.scrollTop + adjustments;
  scrollElement.scrollTo({ top, behavior });
}

/** Whether a change of this row's height would move what is in the window. */
function isAboveWindow(item, _delta, virtualizer) {
  const isMeasured = virtualizer.itemSizeCache.has(item.key);
  return (isMeasured ? item.end : item.start + 1) <= virtualizer.getScrollOffset();
}

function withRow(indexes, index, count) {
  if (index === null || index >= count || indexes.includes(index)) return indexes;
  return index < indexes[0] ? [index, ...indexes] : [...indexes, index];
}

function indexOf(element) {
  const row = element.closest("[data-index]");
  return row === null ? null : Number(row.dataset.index);
}
