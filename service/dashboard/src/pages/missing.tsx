import { Link } from "wouter";
import { Title } from "../parts/basics";

export function Missing() {
  return (
    <>
      <Title page="Not found">There is no such page</Title>
      <p>
        <Link href="/jobs">All jobs</Link>
      </p>
    </>
  );
}
