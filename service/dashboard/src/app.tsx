import { Suspense, lazy, useEffect } from "react";
import { Redirect, Route, Switch, useLocation } from "wouter";
import { startLive } from "./api/live";
import { askFor } from "./api/queries";
import { useSignIn } from "./api/session";
import { Boundary } from "./boundary";
import { Shell } from "./shell";
import { Login } from "./pages/login";
import { Missing } from "./pages/missing";
import { JobsPage, askForJobs } from "./pages/jobs";

// The list of jobs comes with the first request; each other page when it is first opened.
const loadJobPage = () => import("./pages/job");
const JobPage = lazy(loadJobPage);
const ModelsPage = lazy(() => import("./pages/models"));
const ModelPage = lazy(() => import("./pages/model"));
const CostPage = lazy(() => import("./pages/cost"));
const FleetPage = lazy(() => import("./pages/fleet"));
const EventsPage = lazy(() => import("./pages/events"));
const ComparePage = lazy(() => import("./pages/compare"));
const PlanPage = lazy(() => import("./pages/plan"));
const SettingsPage = lazy(() => import("./pages/settings"));

/** Asks for what the page of an address needs, beside the question who is signed in. */
export function askAhead({ pathname, search }: Location): void {
  if (pathname === "/" || pathname === "/jobs") askForJobs(search);
  const [, job, view = "overview"] = /^\/jobs\/([^/]+)(?:\/(\w+))?$/.exec(pathname) ?? [];
  if (job) {
    void loadJobPage().then((page) => page.loadView(view));
    askFor(`/v1/jobs/${job}`, ...(view === "overview" || view === "curve" ? [`/v1/jobs/${job}/curve`] : []));
  }
}

// The router leaves an encoded slash as it is, and a signature begins with a key like team/model.
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function App() {
  const signIn = useSignIn();
  const [location] = useLocation();
  const isSignedIn = signIn.state === "signed-in";
  useEffect(() => (isSignedIn ? startLive() : undefined), [isSignedIn]);
  if (signIn.state === "unknown") return null;
  if (signIn.state === "signed-out") return <Login why={signIn.why} />;
  return (
    <Shell session={signIn.session}>
      <Boundary place={location}>
        <Suspense fallback={<p role="status">Loading…</p>}>
          <Switch>
            <Route path="/">
              <Redirect to="/jobs" replace />
            </Route>
            <Route path="/login">
              <Redirect to="/jobs" replace />
            </Route>
            <Route path="/jobs" component={JobsPage} />
            <Route path="/jobs/:job/:view?">{({ job, view }) => <JobPage key={job} job={job} view={view ?? "overview"} />}</Route>
            <Route path="/models" component={ModelsPage} />
            <Route path="/models/:signature">{({ signature }) => <ModelPage signature={decode(signature)} />}</Route>
            <Route path="/cost" component={CostPage} />
            <Route path="/fleet" component={FleetPage} />
            <Route path="/events" component={EventsPage} />
            <Route path="/compare" component={ComparePage} />
            <Route path="/plan/:plan?">{({ plan }) => <PlanPage plan={plan ?? null} />}</Route>
            <Route path="/settings/:view?">{({ view }) => <SettingsPage view={view ?? "tokens"} />}</Route>
            <Route component={Missing} />
          </Switch>
        </Suspense>
      </Boundary>
    </Shell>
  );
}
