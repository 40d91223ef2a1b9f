// Charts by Apache ECharts, as SVG: sharp on paper, and their texts are text nodes.

import { BarChart, LineChart, TreemapChart } from "echarts/charts";
import { AriaComponent, GridComponent, TooltipComponent } from "echarts/components";
import { init, use } from "echarts/core";
import { SVGRenderer } from "echarts/renderers";

import { el } from "./dom.js";
import { color, onTheme, palette } from "./theme.js";

use([BarChart, LineChart, TreemapChart, AriaComponent, GridComponent, TooltipComponent, SVGRenderer]);

const FONT = "system-ui, sans-serif";

/**
 * Shows a chart in `host` and keeps it in shape: `option` is called anew when the theme changes.
 * `label` says in words what it shows.
 */
export function chart(host, label, option) {
  host.classList.add("chart");
  const made = init(host, null, { renderer: "svg" });
  let current = { label, option };
  const draw = () => {
    const text = { color: color("text"), fontFamily: FONT };
    made.setOption(
      {
        animation: false,
        textStyle: text,
        color: palette(),
        aria: { enabled: true, label: { description: current.label } },
        ...current.option(),
      },
      { notMerge: true },
    );
  };
  draw();
  onTheme(draw);
  new ResizeObserver(() => made.resize()).observe(host);
  return {
    made,
    /** Shows something else in the same place. */
    update(label, option) {
      current = { label, option };
      draw();
    },
  };
}

/** A box that follows the pointer, with lines of text. */
export function tooltip(lines) {
  return {
    confine: true,
    backgroundColor: color("surface"),
    borderColor: color("line"),
    padding: [6, 10],
    textStyle: { color: color("text"), fontFamily: FONT, fontSize: 12.5 },
    formatter: (at) => {
      const box = el("div", { class: "tip" });
      lines(at).forEach((line, index) => box.append(el("div", { class: index ? "" : "tip-title", text: line })));
      return box;
    },
  };
}

/** An axis with quiet lines. */
export function axis(more) {
  const line = { lineStyle: { color: color("line") } };
  return {
    axisLine: line,
    axisTick: { show: false },
    splitLine: line,
    axisLabel: { color: color("muted"), fontFamily: FONT, fontSize: 11.5, ...more.axisLabel },
    nameTextStyle: { color: color("muted"), fontFamily: FONT, fontSize: 11.5 },
    ...Object.fromEntries(Object.entries(more).filter(([name]) => name !== "axisLabel")),
  };
}
